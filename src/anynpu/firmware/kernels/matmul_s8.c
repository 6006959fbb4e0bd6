/* uses: advance multiply clamp */
void anynpu_matmul_s8(const anynpu_matmul_s8_params *p, const int8_t *in1, const int8_t *in2, int8_t *out)
{
    int32_t at1[ANYNPU_AXES] = {0};
    int32_t at2[ANYNPU_AXES] = {0};
    int32_t base1 = 0;
    int32_t base2 = 0;
    do {
        for (int32_t row = 0; row < p->rows; ++row) {
            for (int32_t column = 0; column < p->columns; ++column) {
                const int8_t *a = in1 + base1 + row * p->row_stride;
                const int8_t *b = in2 + base2 + column * p->column_stride;
                int32_t sum = 0;
                for (int32_t i = p->depth; i > 0; --i, a += p->left_stride, b += p->right_stride) {
                    sum += (*a - p->zero1) * (*b - p->zero2);
                }
                *out++ = (int8_t)clamp(multiply(sum, p->multiplier, p->shift) + p->out_zero, INT8_MIN, INT8_MAX);
            }
        }
        (void)advance(p->size, p->stride2, at2, &base2);
    } while (advance(p->size, p->stride1, at1, &base1));
}
