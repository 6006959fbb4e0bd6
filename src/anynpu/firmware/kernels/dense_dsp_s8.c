/* uses: unpack_dsp_s8 requantize_dsp */
/* The sum of an odd channel: 256 times it is the difference. */
static inline int32_t odd_dsp(int32_t both, int32_t even)
{
    return (int32_t)((uint32_t)both - (uint32_t)even) >> 8;
}

void anynpu_dense_dsp_s8(const anynpu_dense_dsp_s8_params *p, const int8_t *in, int8_t *out)
{
    const int32_t offset = p->offset;
    const int32_t words = p->length >> 1;
    const anynpu_channel *channel = p->channels;
    const int32_t *w0 = p->weights;
    for (int32_t left = p->out_channels; left > 0; left -= 4, channel += 4, out += 4) {
        const int32_t *w1 = left > 2 ? w0 + words : w0;
        const int8_t *x = in;
        int32_t even0 = 0;
        int32_t both0 = 0;
        int32_t even1 = 0;
        int32_t both1 = 0;
        for (int32_t i = words >> 1; i > 0; --i, x += 4, w0 += 2, w1 += 2) {
            const four_dsp pairs = unpack_dsp_s8(x);
            both0 = __smlad(pairs.even, w0[0], both0);
            even0 = __smlad(pairs.even, __sxtb16(w0[0]), even0);
            both0 = __smlad(pairs.odd, w0[1], both0);
            even0 = __smlad(pairs.odd, __sxtb16(w0[1]), even0);
            both1 = __smlad(pairs.even, w1[0], both1);
            even1 = __smlad(pairs.even, __sxtb16(w1[0]), even1);
            both1 = __smlad(pairs.odd, w1[1], both1);
            even1 = __smlad(pairs.odd, __sxtb16(w1[1]), even1);
        }
        w0 = w1;
        out[0] = requantize_dsp(even0 + channel[0].bias, channel, offset);
        if (left > 1) {
            out[1] = requantize_dsp(odd_dsp(both0, even0) + channel[1].bias, channel + 1, offset);
        }
        if (left > 2) {
            out[2] = requantize_dsp(even1 + channel[2].bias, channel + 2, offset);
        }
        if (left > 3) {
            out[3] = requantize_dsp(odd_dsp(both1, even1) + channel[3].bias, channel + 3, offset);
        }
    }
}
