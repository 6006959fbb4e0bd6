/* uses: window span clamp */
void anynpu_max_pool_s8(const anynpu_max_pool_s8_params *p, const int8_t *in, int8_t *out)
{
    const anynpu_window *w = &p->window;
    const int32_t depth = w->in_channels;
    for (int32_t batch = 0; batch < w->batches; ++batch) {
        for (int32_t y = 0; y < w->out_height; ++y) {
            const span rows = inside(y * w->stride_y - w->pad_y, w->height, w->in_height);
            for (int32_t x = 0; x < w->out_width; ++x) {
                const span columns = inside(x * w->stride_x - w->pad_x, w->width, w->in_width);
                for (int32_t c = 0; c < depth; ++c) {
                    int32_t best = p->low;
                    for (int32_t iy = rows.first; iy < rows.end; ++iy) {
                        const int8_t *value = in + (iy * w->in_width + columns.first) * depth + c;
                        for (int32_t ix = columns.first; ix < columns.end; ++ix, value += depth) {
                            best = *value > best ? *value : best;
                        }
                    }
                    *out++ = (int8_t)clamp(best, p->low, p->high);
                }
            }
        }
        in += w->in_height * w->in_width * depth;
    }
}
