/* uses: scale_down_dsp clamp */
static inline int8_t sum_dsp_s8(const anynpu_add_dsp_s8_params *p, int32_t a, int32_t b)
{
    const int32_t x = scale_down_dsp((a - p->zero1) * p->twice, p->scaling1);
    const int32_t y = scale_down_dsp((b - p->zero2) * p->twice, p->scaling2);
    return (int8_t)clamp(scale_down_dsp((x + p->sign * y) * 2, p->scaling) + p->out_zero, p->low, p->high);
}

void anynpu_add_dsp_s8(const anynpu_add_dsp_s8_params *p, const int8_t *in1, const int8_t *in2, int8_t *out)
{
    for (int32_t i = p->count; i > 0; --i) {
        *out++ = sum_dsp_s8(p, *in1++, *in2++);
    }
}
