/* The loop of kernels that name it: KERNEL is theirs, ELEMENT computes one value of the result. */
void anynpu_KERNEL(const anynpu_KERNEL_params *p, const int8_t *in1, const int8_t *in2, int8_t *out)
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
            *out++ = ELEMENT(p, *a, *b);
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
