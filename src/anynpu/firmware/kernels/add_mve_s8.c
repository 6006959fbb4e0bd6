/* uses: output_range multiply_mve */
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

void anynpu_add_mve_s8(const anynpu_add_mve_s8_params *params, const int8_t *in1, const int8_t *in2, int8_t *out)
{
    const anynpu_add_mve_s8_params p = *params;
    for (int32_t i = p.count >> 2; i > 0; --i, in1 += 4, in2 += 4, out += 4) {
        vstrbq_s32(out, sums_mve_s8(&p, vldrbq_s32(in1), vldrbq_s32(in2)));
    }
    if (p.count & 3) {
        const mve_pred16_t some = vctp32q((uint32_t)(p.count & 3));
        vstrbq_p_s32(out, sums_mve_s8(&p, vldrbq_z_s32(in1, some), vldrbq_z_s32(in2, some)), some);
    }
}
