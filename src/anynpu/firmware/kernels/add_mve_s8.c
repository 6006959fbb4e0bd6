/* uses: pair_shape output_range multiply_mve */
/* loop: each_pair_mve_s8 sums_mve_s8 */
static inline int32x4_t sums_mve_s8(const anynpu_add_mve_s8_params *p, int32x4_t a, int32x4_t b)
{
    a = vshlq_r_s32(vaddq_n_s32(a, -p->zero1), p->left_shift);
    b = vshlq_r_s32(vaddq_n_s32(b, -p->zero2), p->left_shift);
    a = multiply_mve(a, p->multiplier1, p->shift1);
    b = multiply_mve(b, p->multiplier2, p->shift2);
    a = multiply_mve(vmlaq_n_s32(a, b, p->sign), p->multiplier, p->shift);
    a = vaddq_n_s32(a, p->range.zero);
    return vminq_s32(vmaxq_s32(a, vdupq_n_s32(p->range.low)), vdupq_n_s32(p->range.high));
}
