/* uses: dsp */
/* Four values as two pairs of 16 bits: values 0 and 2, and values 1 and 3. */
typedef struct {
    int32_t even;
    int32_t odd;
} four_dsp;

static inline four_dsp unpack_dsp_s8(const int8_t *from)
{
    int32_t four;
    memcpy(&four, from, sizeof four);
    const four_dsp pairs = {__sxtb16(four), odd_bytes_dsp(four)};
    return pairs;
}
