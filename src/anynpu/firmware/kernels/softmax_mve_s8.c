/* uses: mve reciprocal leading_zeros */
/* The exponentials of up to four values, `count` of them; of those that are too far below the largest, zero. */
static inline int32x4_t exponentials_mve_s8(const anynpu_softmax_mve_s8_params *p, const int8_t *in, int32_t largest,
                                            mve_pred16_t some)
{
    const int32x4_t difference = vsubq_s32(vdupq_n_s32(largest), vldrbq_z_s32(in, some));
    const mve_pred16_t near = vcmpltq_m_n_s32(difference, p->entries, some);
    return vldrwq_gather_shifted_offset_z_s32(p->exponentials, vreinterpretq_u32_s32(difference), near);
}

void anynpu_softmax_mve_s8(const anynpu_softmax_mve_s8_params *params, const int8_t *in, int8_t *out)
{
    const anynpu_softmax_mve_s8_params p = *params;
    for (int32_t row = 0; row < p.rows; ++row, in += p.length, out += p.length) {
        int8_t largest = INT8_MIN;
        for (int32_t i = 0; i < p.length; i += 16) {
            const mve_pred16_t some = vctp8q((uint32_t)(p.length - i));
            largest = vmaxvq_p_s8(largest, vldrbq_z_s8(in + i, some), some);
        }
        int32_t sum = 0;
        for (int32_t i = 0; i < p.length; i += 4) {
            const mve_pred16_t some = vctp32q((uint32_t)(p.length - i));
            sum = vaddvaq_s32(sum, vrshrq_n_s32(exponentials_mve_s8(&p, in + i, largest, some), 12));
        }
        const int32_t headroom = leading_zeros((uint32_t)sum);
        const int32_t fraction = (int32_t)(((uint32_t)sum << headroom) - 0x80000000U);
        const int32_t scale = reciprocal(fraction);
        const int32_t exponent = 12 - headroom + 31 - 8;
        for (int32_t i = 0; i < p.length; i += 4) {
            const mve_pred16_t some = vctp32q((uint32_t)(p.length - i));
            int32x4_t value = vqrdmulhq_n_s32(exponentials_mve_s8(&p, in + i, largest, some), scale);
            value = vminq_s32(vrshlq_n_s32(value, -exponent), vdupq_n_s32(255));
            vstrbq_p_s32(out + i, vaddq_n_s32(value, INT8_MIN), some);
        }
    }
}
