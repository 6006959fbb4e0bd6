/* uses: requantize_mve */
/* All output channels of one pixel, four at a time; the weights have rows of zeros up to a multiple of four. */
static void single_mve_s8(const int8_t *x, const int8_t *weights, const int32_t *channels, int32_t length,
                          int32_t depth, anynpu_output_range range, int8_t *out)
{
    const int8_t *w0 = weights;
    for (int32_t left = depth; left > 0; left -= 4, out += 4, channels += 12) {
        const int8_t *w1 = w0 + length;
        const int8_t *w2 = w1 + length;
        const int8_t *w3 = w2 + length;
        const int8_t *in = x;
        int32_t a = 0;
        int32_t b = 0;
        int32_t c = 0;
        int32_t d = 0;
        int32_t steps = length >> 4;
        do {
            const int8x16_t value = vldrbq_s8(in);
            a = vmladavaq_s8(a, value, vldrbq_s8(w0));
            b = vmladavaq_s8(b, value, vldrbq_s8(w1));
            c = vmladavaq_s8(c, value, vldrbq_s8(w2));
            d = vmladavaq_s8(d, value, vldrbq_s8(w3));
            in += 16;
            w0 += 16;
            w1 += 16;
            w2 += 16;
            w3 += 16;
        } while (--steps != 0);
        w0 = w3;
        const int32_t sums[4] = {a, b, c, d};
        store_outputs(out, requantize_mve(vldrwq_s32(sums), load_channels(channels), range, 0), left);
    }
}
