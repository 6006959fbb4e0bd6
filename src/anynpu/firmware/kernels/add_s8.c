/* uses: pair_shape clamp multiply */
/* loop: each_pair_s8 sum_s8 */
static inline int8_t sum_s8(const anynpu_add_s8_params *p, int32_t a, int32_t b)
{
    const int32_t x = multiply((a - p->zero1) * (1 << p->left_shift), p->multiplier1, p->shift1);
    const int32_t y = multiply((b - p->zero2) * (1 << p->left_shift), p->multiplier2, p->shift2);
    const int32_t sum = multiply(x + p->sign * y, p->multiplier, p->shift) + p->out_zero;
    return (int8_t)clamp(sum, p->low, p->high);
}
