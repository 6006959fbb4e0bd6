/* uses: channel requantize */
/* All output channels of two pixels: dot products of both patches with every row of `weights`. */
static void pair_s8(const int8_t *patch0, const int8_t *patch1, const int8_t *weights, const anynpu_channel *channel,
                    int32_t length, int32_t channels, int32_t offset, int8_t *out0, int8_t *out1)
{
    const int8_t *w0 = weights;
    int32_t left = channels;
    for (; left > 1; left -= 2, channel += 2) {
        const int8_t *w1 = w0 + length;
        const int8_t *x0 = patch0;
        const int8_t *x1 = patch1;
        int32_t a00 = channel[0].bias;
        int32_t a01 = channel[1].bias;
        int32_t a10 = a00;
        int32_t a11 = a01;
        for (int32_t i = length >> 3; i > 0; --i) {
            for (int32_t j = 0; j < 8; ++j) {
                const int32_t p0 = x0[j];
                const int32_t p1 = x1[j];
                const int32_t v0 = w0[j];
                const int32_t v1 = w1[j];
                a00 += p0 * v0;
                a01 += p0 * v1;
                a10 += p1 * v0;
                a11 += p1 * v1;
            }
            x0 += 8;
            x1 += 8;
            w0 += 8;
            w1 += 8;
        }
        for (int32_t i = length & 7; i > 0; --i) {
            const int32_t p0 = *x0++;
            const int32_t p1 = *x1++;
            const int32_t v0 = *w0++;
            const int32_t v1 = *w1++;
            a00 += p0 * v0;
            a01 += p0 * v1;
            a10 += p1 * v0;
            a11 += p1 * v1;
        }
        w0 = w1;
        out0[0] = requantize(a00, channel, offset);
        out0[1] = requantize(a01, channel + 1, offset);
        out1[0] = requantize(a10, channel, offset);
        out1[1] = requantize(a11, channel + 1, offset);
        out0 += 2;
        out1 += 2;
    }
    if (left > 0) {
        int32_t a0 = channel->bias;
        int32_t a1 = a0;
        for (int32_t i = 0; i < length; ++i) {
            a0 += patch0[i] * w0[i];
            a1 += patch1[i] * w0[i];
        }
        out0[0] = requantize(a0, channel, offset);
        out1[0] = requantize(a1, channel, offset);
    }
}
