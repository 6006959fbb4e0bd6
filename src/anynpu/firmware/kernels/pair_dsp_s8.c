/* uses: unpack_dsp_s8 requantize_dsp */
/* Widens `count` values, a multiple of four, to pairs of 16 bits. */
static inline void widen_dsp_s8(const int8_t *from, int32_t *to, int32_t count)
{
    for (; count > 0; count -= 4, from += 4, to += 2) {
        const four_dsp pairs = unpack_dsp_s8(from);
        to[0] = pairs.even;
        to[1] = pairs.odd;
    }
}

/* The sums of two channels for two pixels. */
typedef struct {
    int32_t even0;
    int32_t even1;
    int32_t both0;
    int32_t both1;
} sums_dsp;

/* Adds the products of one pair of values of each pixel with a word of weights. */
static inline void add_pairs_dsp(sums_dsp *s, int32_t x0, int32_t x1, int32_t w)
{
    const int32_t low = __sxtb16(w);
    s->both0 = __smlad(x0, w, s->both0);
    s->both1 = __smlad(x1, w, s->both1);
    s->even0 = __smlad(x0, low, s->even0);
    s->even1 = __smlad(x1, low, s->even1);
}

/* All output channels of two pixels, two channels at a time. A word of the weights holds four: of 16 bits, the low byte is
   a weight of the even channel, and the whole is that plus 256 times a weight of the odd channel. The dot product with
   the low bytes is the sum of the even channel; that with the whole words, less it, is 256 times the sum of the odd one,
   which must stay below 2^23. A single last channel is even. */
__attribute__((noinline)) static void pair_dsp_s8(const int32_t *patch0, const int32_t *patch1, const int32_t *w,
                                                  const anynpu_channel *channel, int32_t length, int32_t channels,
                                                  int32_t offset, int8_t *out0, int8_t *out1)
{
    for (; channels > 0; channels -= 2, channel += 2, out0 += 2, out1 += 2) {
        const int32_t *x0 = patch0;
        const int32_t *x1 = patch1;
        sums_dsp s = {0, 0, 0, 0};
        for (int32_t i = length >> 3; i > 0; --i, x0 += 4, x1 += 4, w += 4) {
            add_pairs_dsp(&s, x0[0], x1[0], w[0]);
            add_pairs_dsp(&s, x0[1], x1[1], w[1]);
            IN_ORDER(w);
            add_pairs_dsp(&s, x0[2], x1[2], w[2]);
            add_pairs_dsp(&s, x0[3], x1[3], w[3]);
        }
        if (length & 4) {
            add_pairs_dsp(&s, x0[0], x1[0], w[0]);
            add_pairs_dsp(&s, x0[1], x1[1], w[1]);
            w += 2;
        }
        out0[0] = requantize_dsp(s.even0 + channel[0].bias, channel, offset);
        out1[0] = requantize_dsp(s.even1 + channel[0].bias, channel, offset);
        if (channels > 1) {
            const int32_t odd0 = (int32_t)((uint32_t)s.both0 - (uint32_t)s.even0) >> 8;
            const int32_t odd1 = (int32_t)((uint32_t)s.both1 - (uint32_t)s.even1) >> 8;
            out0[1] = requantize_dsp(odd0 + channel[1].bias, channel + 1, offset);
            out1[1] = requantize_dsp(odd1 + channel[1].bias, channel + 1, offset);
        }
    }
}
