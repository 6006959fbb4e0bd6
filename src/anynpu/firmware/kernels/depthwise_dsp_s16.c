/* uses: window short_channel patch_s16 pair_dsp_s16 */
/* One output pixel, two channels at a time; `row` and `column` are the distances between taps in `in`. */
__attribute__((noinline)) static void depthwise_pixel_dsp_s16(const anynpu_depthwise_dsp_s16_params *p,
                                                              const int16_t *in, int32_t row, int32_t column,
                                                              int16_t *out)
{
    const int32_t width = p->window.width;
    const int32_t next_row = row - width * column;
    const anynpu_short_channel *channel = p->channels;
    const int32_t *w = p->weights;
    for (int32_t left = p->window.in_channels; left > 0; left -= 2, channel += 2, in += 2, out += 2) {
        const int16_t *x = in;
        int32_t a0 = 0;
        int32_t a1 = 0;
        for (int32_t ky = p->window.height; ky > 0; --ky, x += next_row) {
            for (int32_t kx = width; kx > 0; --kx, x += column) {
                const int32_t two = two_dsp_s16(x);
                a0 = __smlabb(two, *w, a0);
                a1 = __smlatt(two, *w++, a1);
            }
        }
        out[0] = output_dsp_s16(a0, channel, p->low, p->high);
        if (left > 1) {
            out[1] = output_dsp_s16(a1, channel + 1, p->low, p->high);
        }
    }
}

void anynpu_depthwise_dsp_s16(const anynpu_depthwise_dsp_s16_params *p, const int16_t *in, int16_t *out,
                              int16_t *scratch)
{
    const anynpu_window *w = &p->window;
    const int32_t depth = w->in_channels;
    const int32_t span_y = (w->height - 1) * w->step_y;
    const int32_t span_x = (w->width - 1) * w->step_x;
    for (int32_t batch = 0; batch < w->batches; ++batch) {
        for (int32_t y = 0; y < w->out_height; ++y) {
            const int32_t iy = y * w->stride_y - w->pad_y;
            for (int32_t x = 0; x < w->out_width; ++x, out += depth) {
                const int32_t ix = x * w->stride_x - w->pad_x;
                if (iy >= 0 && ix >= 0 && iy + span_y < w->in_height && ix + span_x < w->in_width) {
                    depthwise_pixel_dsp_s16(p, in + (iy * w->in_width + ix) * depth, w->step_y * w->in_width * depth,
                                            w->step_x * depth, out);
                } else {
                    patch_s16(w, in, iy, ix, scratch);
                    depthwise_pixel_dsp_s16(p, scratch, w->width * depth, depth, out);
                }
            }
        }
        in += w->in_height * w->in_width * depth;
    }
}
