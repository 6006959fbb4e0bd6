/* uses: requantize_mve */
#define CHUNK 64

/* The dot products of three vectors, `stride` apart, with `rows` rows of weights, two rows at a time. `length` is a
   multiple of 16. The sums of a vector are CHUNK apart. On its own, its pointers and sums just fill the registers. */
__attribute__((noinline)) static void dots_mve_s8(const int8_t *x, int32_t stride, const int8_t *w0, int32_t length, int32_t rows, int32_t *sums)
{
    const int32_t steps = (length >> 4) - 1;
    do {
        const int8_t *w1 = w0 + length;
        const int8_t *x0 = x;
        const int8_t *x1 = x0 + stride;
        const int8_t *x2 = x1 + stride;
        int8x16_t v0 = vldrbq_s8(w0);
        int8x16_t v1 = vldrbq_s8(w1);
        int8x16_t value = vldrbq_s8(x0);
        int32_t a0 = vmladavq_s8(value, v0);
        int32_t a1 = vmladavq_s8(value, v1);
        value = vldrbq_s8(x1);
        int32_t b0 = vmladavq_s8(value, v0);
        int32_t b1 = vmladavq_s8(value, v1);
        value = vldrbq_s8(x2);
        int32_t c0 = vmladavq_s8(value, v0);
        int32_t c1 = vmladavq_s8(value, v1);
        for (int32_t i = steps; i > 0; --i) {
            w0 += 16;
            w1 += 16;
            x0 += 16;
            x1 += 16;
            x2 += 16;
            v0 = vldrbq_s8(w0);
            v1 = vldrbq_s8(w1);
            value = vldrbq_s8(x0);
            a0 = vmladavaq_s8(a0, value, v0);
            a1 = vmladavaq_s8(a1, value, v1);
            value = vldrbq_s8(x1);
            b0 = vmladavaq_s8(b0, value, v0);
            b1 = vmladavaq_s8(b1, value, v1);
            value = vldrbq_s8(x2);
            c0 = vmladavaq_s8(c0, value, v0);
            c1 = vmladavaq_s8(c1, value, v1);
        }
        w0 = w1 + 16;
        sums[0] = a0;
        sums[1] = a1;
        sums[CHUNK] = b0;
        sums[CHUNK + 1] = b1;
        sums[2 * CHUNK] = c0;
        sums[2 * CHUNK + 1] = c1;
        sums += 2;
        rows -= 2;
    } while (rows > 0);
}

/* The outputs of `count` channels of three pixels from their sums. */
static inline void outputs_triple_mve_s8(const int32_t *sums, const int32_t *channels, int32_t count, int32_t depth,
                                         anynpu_output_range range, int32_t positive, int8_t *out)
{
    for (; count > 0; count -= 4, sums += 4, out += 4, channels += 12) {
        const four_channels c = load_channels(channels);
        store_outputs(out, requantize_mve(vldrwq_s32(sums), c, range, positive), count);
        store_outputs(out + depth, requantize_mve(vldrwq_s32(sums + CHUNK), c, range, positive), count);
        store_outputs(out + 2 * depth, requantize_mve(vldrwq_s32(sums + 2 * CHUNK), c, range, positive), count);
    }
}

/* All output channels of three pixels; the weights have rows of zeros up to a multiple of four. */
static void triple_mve_s8(const int8_t *x, int32_t stride, const int8_t *weights, const int32_t *channels,
                          int32_t length, int32_t depth, anynpu_output_range range, int8_t *out)
{
    int32_t sums[3 * CHUNK];
    for (int32_t left = depth; left > 0; left -= CHUNK) {
        const int32_t count = left < CHUNK ? left : CHUNK;
        dots_mve_s8(x, stride, weights, length, (count + 3) & ~3, sums);
        if (rectified(range)) {
            outputs_triple_mve_s8(sums, channels, count, depth, range, 1, out);
        } else {
            outputs_triple_mve_s8(sums, channels, count, depth, range, 0, out);
        }
        weights += CHUNK * length;
        channels += 3 * CHUNK;
        out += CHUNK;
    }
}
