/* uses: window output_range gather_mve_s8 triple_mve_s8 single_mve_s8 */
void anynpu_conv_mve_s8(const anynpu_conv_mve_s8_params *p, const int8_t *in, int8_t *out, int8_t *scratch)
{
    const anynpu_window *w = &p->window;
    const int32_t length = p->length;
    const int32_t depth = w->out_channels;
    const int32_t row = w->in_width * w->in_channels;
    const int32_t last_y = w->in_height - (w->height - 1) * w->step_y; /* windows from here on leave the image */
    const int32_t last_x = w->in_width - w->width + 1;
    for (int32_t batch = 0; batch < w->batches; ++batch) {
        int32_t waiting = 0;
        for (int32_t y = 0; y < w->out_height; ++y) {
            const int32_t iy = y * w->stride_y - w->pad_y;
            const int32_t whole = w->step_x == 1 && iy >= 0 && iy < last_y;
            int32_t ix = -w->pad_x;
            for (int32_t x = 0; x < w->out_width; ++x, ix += w->stride_x) {
                int8_t *patch = scratch + waiting * length;
                if (whole && ix >= 0 && ix < last_x) {
                    rows_mve_s8(in + iy * row + ix * w->in_channels, w->step_y * row, w->height,
                                w->width * w->in_channels, patch);
                } else {
                    gather_mve_s8(w, in, iy, ix, p->in_zero, patch);
                }
                if (++waiting == 3) {
                    triple_mve_s8(scratch, length, p->weights, p->channels, length, depth, p->range, out);
                    out += 3 * depth;
                    waiting = 0;
                }
            }
        }
        for (int32_t i = 0; i < waiting; ++i, out += depth) {
            single_mve_s8(scratch + i * length, p->weights, p->channels, length, depth, p->range, out);
        }
        in += w->in_height * w->in_width * w->in_channels;
    }
}
