/* uses: mve window span clamp */
/* The mean of `count` values, halves away from zero. */
static inline int32_t mean_of(int32_t sum, int32_t count)
{
    return (sum > 0 ? sum + count / 2 : sum - count / 2) / count;
}

void anynpu_average_pool_mve_s8(const anynpu_average_pool_mve_s8_params *p, const int8_t *in, int8_t *out)
{
    const anynpu_window *w = &p->window;
    const int32_t depth = w->in_channels;
    const int32_t row = w->in_width * depth;
    for (int32_t batch = 0; batch < w->batches; ++batch) {
        for (int32_t y = 0; y < w->out_height; ++y) {
            const span rows = inside(y * w->stride_y - w->pad_y, w->height, w->in_height);
            for (int32_t x = 0; x < w->out_width; ++x, out += depth) {
                const span columns = inside(x * w->stride_x - w->pad_x, w->width, w->in_width);
                const int32_t count = (rows.end - rows.first) * (columns.end - columns.first);
                /* Rows of the whole width lie one behind the other. */
                const int32_t whole = columns.end - columns.first == w->in_width;
                const int32_t runs = whole ? 1 : rows.end - rows.first;
                const int32_t run = whole ? count : columns.end - columns.first;
                const int8_t *first = in + rows.first * row + columns.first * depth;
                int32_t c = 0;
                /* The sum of 255 values fits 16 bits. */
                for (; count < 256 && depth - c >= 8; c += 8) {
                    int16x8_t sum = vdupq_n_s16(0);
                    for (int32_t iy = 0; iy < runs; ++iy) {
                        const int8_t *value = first + iy * row + c;
                        for (int32_t ix = run; ix > 0; --ix, value += depth) {
                            sum = vaddq_s16(sum, vldrbq_s16(value));
                        }
                    }
                    int16_t sums[8];
                    vstrhq_s16(sums, sum);
                    for (int32_t i = 0; i < 8; ++i) {
                        out[c + i] = (int8_t)clamp(mean_of(sums[i], count), p->low, p->high);
                    }
                }
                for (; c < depth; c += 4) {
                    int32x4_t sum = vdupq_n_s32(0);
                    for (int32_t iy = 0; iy < runs; ++iy) {
                        const int8_t *value = first + iy * row + c;
                        if (depth - c >= 4) {
                            for (int32_t ix = run; ix > 0; --ix, value += depth) {
                                sum = vaddq_s32(sum, vldrbq_s32(value));
                            }
                            continue;
                        }
                        for (int32_t ix = run; ix > 0; --ix, value += depth) {
                            sum = vaddq_s32(sum, vldrbq_z_s32(value, vctp32q((uint32_t)(depth - c))));
                        }
                    }
                    int32_t sums[4];
                    vstrwq_s32(sums, sum);
                    for (int32_t i = 0; i < 4 && c + i < depth; ++i) {
                        out[c + i] = (int8_t)clamp(mean_of(sums[i], count), p->low, p->high);
                    }
                }
            }
        }
        in += w->in_height * row;
    }
}
