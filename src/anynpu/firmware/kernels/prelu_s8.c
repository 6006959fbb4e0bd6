/* uses: pair_shape clamp multiply */
static inline int8_t sloped_s8(const anynpu_prelu_s8_params *p, int32_t a, int32_t b)
{
    const int32_t value = a - p->zero1;
    const int32_t scaled = value >= 0 ? multiply(value, p->multiplier1, p->shift1)
                                      : multiply(value * (b - p->zero2), p->multiplier2, p->shift2);
    return (int8_t)clamp(scaled + p->out_zero, INT8_MIN, INT8_MAX);
}

void anynpu_prelu_s8(const anynpu_prelu_s8_params *p, const int8_t *in1, const int8_t *in2, int8_t *out)
{
    const anynpu_pair_shape *s = &p->shape;
    int32_t at[ANYNPU_AXES - 1] = {0};
    const int32_t step1 = s->stride1[ANYNPU_AXES - 1];
    const int32_t step2 = s->stride2[ANYNPU_AXES - 1];
    int32_t axis;
    do {
        const int8_t *a = in1;
        const int8_t *b = in2;
        for (int32_t i = s->size[ANYNPU_AXES - 1]; i > 0; --i, a += step1, b += step2) {
            *out++ = sloped_s8(p, *a, *b);
        }
        for (axis = ANYNPU_AXES - 2; axis >= 0; --axis) {
            in1 += s->stride1[axis];
            in2 += s->stride2[axis];
            if (++at[axis] < s->size[axis]) {
                break;
            }
            in1 -= s->stride1[axis] * s->size[axis];
            in2 -= s->stride2[axis] * s->size[axis];
            at[axis] = 0;
        }
    } while (axis >= 0);
}
