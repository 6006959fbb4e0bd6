/* The loop of kernels that name it: KERNEL is theirs, ELEMENT computes four values of the result. In the last axis a step
   is 1, or 0 where one value is for all. */
void anynpu_KERNEL(const anynpu_KERNEL_params *params, const int8_t *in1, const int8_t *in2, int8_t *out)
{
    const anynpu_KERNEL_params p = *params;
    const anynpu_pair_shape *s = &params->shape;
    int32_t at[ANYNPU_AXES - 1] = {0};
    const int32_t step1 = s->stride1[ANYNPU_AXES - 1];
    const int32_t step2 = s->stride2[ANYNPU_AXES - 1];
    const int32_t size = s->size[ANYNPU_AXES - 1];
    int32_t axis;
    do {
        const int8_t *a = in1;
        const int8_t *b = in2;
        int32_t left = size;
        if (step1 != 0 && step2 != 0) {
            for (; left > 3; left -= 4, a += 4, b += 4, out += 4) {
                vstrbq_s32(out, ELEMENT(&p, vldrbq_s32(a), vldrbq_s32(b)));
            }
        }
        for (; left > 0; left -= 4, a += 4 * step1, b += 4 * step2, out += 4) {
            const mve_pred16_t some = vctp32q((uint32_t)left);
            const int32x4_t x = step1 != 0 ? vldrbq_z_s32(a, some) : vdupq_n_s32(*a);
            const int32x4_t y = step2 != 0 ? vldrbq_z_s32(b, some) : vdupq_n_s32(*b);
            vstrbq_p_s32(out, ELEMENT(&p, x, y), some);
        }
        out += left; /* a last block of fewer than four went too far */
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
