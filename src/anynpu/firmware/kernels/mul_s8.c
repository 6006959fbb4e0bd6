/* uses: pair_shape clamp multiply */
/* loop: each_pair_s8 product_s8 */
static inline int8_t product_s8(const anynpu_mul_s8_params *p, int32_t a, int32_t b)
{
    const int32_t product = (a - p->zero1) * (b - p->zero2);
    return (int8_t)clamp(multiply(product, p->multiplier, p->shift) + p->out_zero, p->low, p->high);
}
