/* uses: pair_shape clamp scale_down */
/* loop: each_pair_s8 sum_s8 */
static inline int8_t sum_s8(const anynpu_add_s8_params *p, int32_t a, int32_t b)
{
    const int32_t x = scale_down((a - p->zero1) * p->twice, p->scaling1);
    const int32_t y = scale_down((b - p->zero2) * p->twice, p->scaling2);
    return (int8_t)clamp(scale_down((x + p->sign * y) * 2, p->scaling) + p->out_zero, p->low, p->high);
}
