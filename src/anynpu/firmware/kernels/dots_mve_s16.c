/* uses: mve */
/* Two channels in a vector of four biases and four factors each. */
static inline int32x4_t outputs_mve_s16(int32x4_t sum, const int32_t *channels, int32_t low, int32_t high)
{
    sum = vqrdmulhq_s32(vaddq_s32(sum, vldrwq_s32(channels)), vldrwq_s32(channels + 4));
    return vminq_s32(vmaxq_s32(sum, vdupq_n_s32(low)), vdupq_n_s32(high));
}

/* All output channels of one row of values, four at a time; the weights have rows of zeros up to a multiple of four. */
static void single_mve_s16(const int16_t *x, const int8_t *w0, const int32_t *channels, int32_t length, int32_t depth,
                           int32_t low, int32_t high, int16_t *out)
{
    for (int32_t left = depth; left > 0; left -= 4, out += 4, channels += 8) {
        const int8_t *w1 = w0 + length;
        const int8_t *w2 = w1 + length;
        const int8_t *w3 = w2 + length;
        const int16_t *in = x;
        int32_t a = 0;
        int32_t b = 0;
        int32_t c = 0;
        int32_t d = 0;
        for (int32_t steps = length >> 3; steps > 0; --steps) {
            const int16x8_t value = vldrhq_s16(in);
            a = vmladavaq_s16(a, value, vldrbq_s16(w0));
            b = vmladavaq_s16(b, value, vldrbq_s16(w1));
            c = vmladavaq_s16(c, value, vldrbq_s16(w2));
            d = vmladavaq_s16(d, value, vldrbq_s16(w3));
            in += 8;
            w0 += 8;
            w1 += 8;
            w2 += 8;
            w3 += 8;
        }
        w0 = w3;
        const int32_t sums[4] = {a, b, c, d};
        vstrhq_p_s32(out, outputs_mve_s16(vldrwq_s32(sums), channels, low, high), vctp32q((uint32_t)left));
    }
}

/* The sums of four channels for two rows of values. */
static inline void eight_dots_mve_s16(const int16_t *x0, const int16_t *x1, const int8_t *w0, int32_t length,
                                      int32_t *sums)
{
    for (int32_t rows = 2; rows > 0; --rows, sums += 2) {
        const int8_t *w1 = w0 + length;
        const int16_t *p0 = x0;
        const int16_t *p1 = x1;
        int32_t a0 = 0;
        int32_t a1 = 0;
        int32_t b0 = 0;
        int32_t b1 = 0;
        for (int32_t steps = length >> 3; steps > 0; --steps) {
            const int16x8_t v0 = vldrbq_s16(w0);
            const int16x8_t v1 = vldrbq_s16(w1);
            int16x8_t value = vldrhq_s16(p0);
            a0 = vmladavaq_s16(a0, value, v0);
            a1 = vmladavaq_s16(a1, value, v1);
            value = vldrhq_s16(p1);
            b0 = vmladavaq_s16(b0, value, v0);
            b1 = vmladavaq_s16(b1, value, v1);
            w0 += 8;
            w1 += 8;
            p0 += 8;
            p1 += 8;
        }
        w0 = w1;
        sums[0] = a0;
        sums[1] = a1;
        sums[4] = b0;
        sums[5] = b1;
    }
}

/* The same of two rows of values. */
static void double_mve_s16(const int16_t *x0, const int16_t *x1, const int8_t *w, const int32_t *channels,
                           int32_t length, int32_t depth, int32_t low, int32_t high, int16_t *out)
{
    for (int32_t left = depth; left > 0; left -= 4, out += 4, channels += 8, w += 4 * length) {
        const mve_pred16_t some = vctp32q((uint32_t)left);
        int32_t sums[8];
        eight_dots_mve_s16(x0, x1, w, length, sums);
        vstrhq_p_s32(out, outputs_mve_s16(vldrwq_s32(sums), channels, low, high), some);
        vstrhq_p_s32(out + depth, outputs_mve_s16(vldrwq_s32(sums + 4), channels, low, high), some);
    }
}
