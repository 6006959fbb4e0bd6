/* uses: mve window span */
void anynpu_max_pool_mve_s8(const anynpu_max_pool_mve_s8_params *p, const int8_t *in, int8_t *out)
{
    const anynpu_window *w = &p->window;
    const int32_t depth = w->in_channels;
    const int32_t row = w->in_width * depth;
    const int8x16_t high = vdupq_n_s8((int8_t)p->high);
    for (int32_t batch = 0; batch < w->batches; ++batch) {
        for (int32_t y = 0; y < w->out_height; ++y) {
            const span rows = inside(y * w->stride_y - w->pad_y, w->height, w->in_height);
            for (int32_t x = 0; x < w->out_width; ++x, out += depth) {
                const span columns = inside(x * w->stride_x - w->pad_x, w->width, w->in_width);
                const int8_t *first = in + rows.first * row + columns.first * depth;
                for (int32_t c = 0; c < depth; c += 16) {
                    const mve_pred16_t some = vctp8q((uint32_t)(depth - c));
                    int8x16_t best = vdupq_n_s8((int8_t)p->low);
                    for (int32_t iy = 0; iy < rows.end - rows.first; ++iy) {
                        const int8_t *value = first + iy * row + c;
                        for (int32_t ix = columns.end - columns.first; ix > 0; --ix, value += depth) {
                            best = vmaxq_s8(best, vldrbq_z_s8(value, some));
                        }
                    }
                    vstrbq_p_s8(out + c, vminq_s8(best, high), some);
                }
            }
        }
        in += w->in_height * row;
    }
}
