/* uses: pair_shape clamp multiply */
/* loop: each_pair_s8 sloped_s8 */
static inline int8_t sloped_s8(const anynpu_prelu_s8_params *p, int32_t a, int32_t b)
{
    const int32_t value = a - p->zero1;
    const int32_t scaled = value >= 0 ? multiply(value, p->multiplier1, p->shift1)
                                      : multiply(value * (b - p->zero2), p->multiplier2, p->shift2);
    return (int8_t)clamp(scaled + p->out_zero, INT8_MIN, INT8_MAX);
}
