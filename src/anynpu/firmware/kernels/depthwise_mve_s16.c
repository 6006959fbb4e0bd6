/* uses: window patch_s16 mve */
/* Eight scaled sums as outputs, the even channels and the odd ones. */
static inline int16x8_t short_outputs_mve(int32x4_t even, int32x4_t odd, const int32_t *channels, int16_t low,
                                          int16_t high)
{
    even = vqrdmulhq_s32(vaddq_s32(even, vldrwq_s32(channels)), vldrwq_s32(channels + 4));
    odd = vqrdmulhq_s32(vaddq_s32(odd, vldrwq_s32(channels + 8)), vldrwq_s32(channels + 12));
    const int16x8_t both = vqmovntq_s32(vqmovnbq_s32(vuninitializedq_s16(), even), odd);
    return vminq_s16(vmaxq_s16(both, vdupq_n_s16(low)), vdupq_n_s16(high));
}

/* One output pixel, eight channels at a time; `row` and `column` are the distances between taps in `in`. */
__attribute__((noinline)) static void depthwise_pixel_mve_s16(const anynpu_depthwise_mve_s16_params *p,
                                                              const int16_t *in, int32_t row, int32_t column,
                                                              int16_t *out)
{
    const int32_t width = p->window.width;
    const int32_t next_row = row - width * column;
    const int8_t *w = p->weights;
    const int32_t *channels = p->channels;
    for (int32_t left = p->window.in_channels; left > 0; left -= 8, in += 8, out += 8, channels += 16) {
        const int16_t *x = in;
        int32x4_t even = vdupq_n_s32(0);
        int32x4_t odd = even;
        for (int32_t ky = p->window.height; ky > 0; --ky, x += next_row) {
            for (int32_t kx = width; kx > 0; --kx, x += column, w += 8) {
                const int16x8_t value = vldrhq_s16(x);
                const int16x8_t weight = vldrbq_s16(w);
                even = vaddq_s32(even, vmullbq_int_s16(value, weight));
                odd = vaddq_s32(odd, vmulltq_int_s16(value, weight));
            }
        }
        const int16x8_t values = short_outputs_mve(even, odd, channels, (int16_t)p->low, (int16_t)p->high);
        vstrhq_p_s16(out, values, vctp16q((uint32_t)left));
    }
}

void anynpu_depthwise_mve_s16(const anynpu_depthwise_mve_s16_params *p, const int16_t *in, int16_t *out,
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
                    depthwise_pixel_mve_s16(p, in + (iy * w->in_width + ix) * depth, w->step_y * w->in_width * depth,
                                            w->step_x * depth, out);
                } else {
                    patch_s16(w, in, iy, ix, scratch);
                    depthwise_pixel_mve_s16(p, scratch, w->width * depth, depth, out);
                }
            }
        }
        in += w->in_height * w->in_width * depth;
    }
}
