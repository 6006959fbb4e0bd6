/* uses: pair_shape output_range multiply_mve */
/* loop: each_pair_mve_s8 products_mve_s8 */
static inline int32x4_t products_mve_s8(const anynpu_mul_mve_s8_params *p, int32x4_t a, int32x4_t b)
{
    a = vmulq_s32(vaddq_n_s32(a, -p->zero1), vaddq_n_s32(b, -p->zero2));
    a = vaddq_n_s32(multiply_mve(a, p->multiplier, p->shift), p->range.zero);
    return vminq_s32(vmaxq_s32(a, vdupq_n_s32(p->range.low)), vdupq_n_s32(p->range.high));
}
