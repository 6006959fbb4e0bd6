/* The loop of kernels that name it: KERNEL is theirs, with the types that it reads and writes; ELEMENT computes one value. */
void anynpu_KERNEL(const anynpu_KERNEL_params *p, const KERNEL_operand *in1, const KERNEL_operand *in2, KERNEL_result *out)
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
