/* uses: mve */
/* Multiplies by multiplier * 2^(shift - 31), rounded twice as TensorFlow Lite Micro does; shift is -31 to 0. */
static inline int32x4_t multiply_mve(int32x4_t value, int32_t multiplier, int32_t shift)
{
    const int32x4_t high = vqrdmulhq_n_s32(value, multiplier);
    /* The shift rounds halves up: one less makes those of negative numbers go away from zero. No shift, no rounding. */
    const int32x4_t down = vshrq_n_s32(vandq_s32(high, vdupq_n_s32(shift)), 31);
    return vrshlq_n_s32(vaddq_s32(high, down), shift);
}
