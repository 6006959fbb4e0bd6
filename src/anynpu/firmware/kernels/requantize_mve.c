/* uses: mve output_range */
/* The bias, factor and right shift of four channels; `channels` holds them as four biases, four multipliers, four
   shifts. */
typedef struct {
    int32x4_t bias;
    int32x4_t multiplier;
    int32x4_t shift;
} four_channels;

static inline four_channels load_channels(const int32_t *channels)
{
    const four_channels c = {vldrwq_s32(channels), vldrwq_s32(channels + 4), vldrwq_s32(channels + 8)};
    return c;
}

/* Whether no output is negative: then it does not matter how negative numbers are rounded. */
static inline int32_t rectified(anynpu_output_range range)
{
    return range.low >= range.zero;
}

/* Scales four accumulators with the two roundings of TensorFlow Lite Micro. */
static inline int32x4_t scale_mve(int32x4_t sum, four_channels c, int32_t positive)
{
    sum = vqrdmulhq_s32(vaddq_s32(sum, c.bias), c.multiplier);
    if (!positive) {
        /* The shift rounds halves up: one less makes those of negative numbers go away from zero. */
        sum = vaddq_s32(sum, vshrq_n_s32(sum, 31));
    }
    return vrshlq_s32(sum, c.shift);
}

/* Four accumulators as outputs. */
static inline int32x4_t requantize_mve(int32x4_t sum, four_channels c, anynpu_output_range range, int32_t positive)
{
    sum = vaddq_n_s32(scale_mve(sum, c, positive), range.zero);
    return vminq_s32(vmaxq_s32(sum, vdupq_n_s32(range.low)), vdupq_n_s32(range.high));
}

/* Eight scaled accumulators as outputs; 16 bits hold all that is not saturated later. */
static inline int16x8_t outputs_mve(int32x4_t even, int32x4_t odd, anynpu_output_range range, int32_t relu)
{
    const int16x8_t both = vqmovntq_s32(vqmovnbq_s32(vuninitializedq_s16(), even), odd);
    if (relu) {
        return vreinterpretq_s16_s8(vqmovnbq_s16(vreinterpretq_s8_s16(both), vqaddq_n_s16(both, -128)));
    }
    const int16x8_t moved = vqaddq_n_s16(both, (int16_t)range.zero);
    return vminq_s16(vmaxq_s16(moved, vdupq_n_s16((int16_t)range.low)), vdupq_n_s16((int16_t)range.high));
}

/* Whether the outputs are those of a plain ReLU, the whole range of 8 bits above zero. */
static inline int32_t plain_relu(anynpu_output_range range)
{
    return range.zero == -128 && range.low == -128 && range.high == 127;
}

/* Stores the first `count` of up to four outputs. */
static inline void store_outputs(int8_t *out, int32x4_t values, int32_t count)
{
    if (count >= 4) {
        vstrbq_s32(out, values);
    } else {
        vstrbq_p_s32(out, values, vctp32q((uint32_t)count));
    }
}

/* Stores the first `count` of up to eight outputs. */
static inline void store_eight(int8_t *out, int16x8_t values, int32_t count)
{
    if (count >= 8) {
        vstrbq_s16(out, values);
    } else {
        vstrbq_p_s16(out, values, vctp16q((uint32_t)count));
    }
}
