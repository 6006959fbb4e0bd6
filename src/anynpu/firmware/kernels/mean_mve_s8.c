/* uses: output_range multiply_mve */
void anynpu_mean_mve_s8(const anynpu_mean_mve_s8_params *params, const int8_t *in, int8_t *out)
{
    const anynpu_mean_mve_s8_params p = *params;
    for (int32_t outer = p.outer; outer > 0; --outer, in += p.outer_stride) {
        for (int32_t c = 0; c < p.inner; c += 4, out += 4) {
            const mve_pred16_t some = vctp32q((uint32_t)(p.inner - c));
            const int8_t *x = in + c;
            int32x4_t sum = vdupq_n_s32(-p.offset);
            for (int32_t i = p.count; i > 0; --i, x += p.stride) {
                sum = vaddq_s32(sum, vldrbq_z_s32(x, some));
            }
            sum = vaddq_n_s32(multiply_mve(sum, p.multiplier, p.shift), p.range.zero);
            sum = vminq_s32(vmaxq_s32(sum, vdupq_n_s32(p.range.low)), vdupq_n_s32(p.range.high));
            vstrbq_p_s32(out, sum, some);
        }
        out -= -p.inner & 3; /* a last block of fewer than four went too far */
    }
}
