/* uses: dsp short_channel clamp */
/* Two values of 16 bits. */
static inline int32_t two_dsp_s16(const int16_t *from)
{
    int32_t two;
    memcpy(&two, from, sizeof two);
    return two;
}

static inline int16_t output_dsp_s16(int32_t sum, const anynpu_short_channel *channel, int32_t low, int32_t high)
{
    return (int16_t)clamp(high_dsp(sum + channel->bias, channel->multiplier), low, high);
}

/* All output channels of two pixels, two channels at a time. Of four weights in a word, bytes 0 and 2 are the first two,
   bytes 1 and 3 the others. A single last channel is its own partner. */
__attribute__((noinline)) static void pair_dsp_s16(const int16_t *patch0, const int16_t *patch1, const int32_t *w0,
                                                   const anynpu_short_channel *channel, int32_t length,
                                                   int32_t channels, int32_t low, int32_t high, int16_t *out0,
                                                   int16_t *out1)
{
    for (; channels > 0; channels -= 2, channel += 2, out0 += 2, out1 += 2) {
        const int32_t *w1 = channels > 1 ? w0 + (length >> 2) : w0;
        const int16_t *x0 = patch0;
        const int16_t *x1 = patch1;
        int32_t a00 = 0;
        int32_t a01 = 0;
        int32_t a10 = 0;
        int32_t a11 = 0;
        for (int32_t i = length >> 2; i > 0; --i, x0 += 4, x1 += 4) {
            const int32_t v0 = *w0++;
            const int32_t v1 = *w1++;
            int32_t p0 = two_dsp_s16(x0);
            int32_t p1 = two_dsp_s16(x1);
            int32_t v = __sxtb16(v0);
            a00 = __smlad(p0, v, a00);
            a10 = __smlad(p1, v, a10);
            v = __sxtb16(v1);
            a01 = __smlad(p0, v, a01);
            a11 = __smlad(p1, v, a11);
            p0 = two_dsp_s16(x0 + 2);
            p1 = two_dsp_s16(x1 + 2);
            v = odd_bytes_dsp(v0);
            a00 = __smlad(p0, v, a00);
            a10 = __smlad(p1, v, a10);
            v = odd_bytes_dsp(v1);
            a01 = __smlad(p0, v, a01);
            a11 = __smlad(p1, v, a11);
        }
        w0 = w1;
        out0[0] = output_dsp_s16(a00, channel, low, high);
        out1[0] = output_dsp_s16(a10, channel, low, high);
        if (channels > 1) {
            out0[1] = output_dsp_s16(a01, channel + 1, low, high);
            out1[1] = output_dsp_s16(a11, channel + 1, low, high);
        }
    }
}
