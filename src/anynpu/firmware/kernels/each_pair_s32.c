/* The loop of kernels that name it: KERNEL is theirs, ELEMENT computes one value of the result. */
void anynpu_KERNEL(const anynpu_KERNEL_params *p, const int32_t *in1, const int32_t *in2, KERNEL_result *out)
{
    int32_t at[ANYNPU_AXES] = {0};
    int32_t other[ANYNPU_AXES] = {0};
    int32_t first = 0;
    int32_t second = 0;
    do {
        *out++ = ELEMENT(p, in1[first], in2[second]);
        (void)advance(p->shape.size, p->shape.stride2, other, &second);
    } while (advance(p->shape.size, p->shape.stride1, at, &first));
}
