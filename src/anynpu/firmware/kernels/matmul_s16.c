/* uses: advance multiply_wide clamp */
void anynpu_matmul_s16(const anynpu_matmul_s16_params *p, const int16_t *in1, const int16_t *in2, int16_t *out)
{
    int32_t at1[ANYNPU_AXES] = {0};
    int32_t at2[ANYNPU_AXES] = {0};
    int32_t base1 = 0;
    int32_t base2 = 0;
    do {
        for (int32_t row = 0; row < p->rows; ++row) {
            for (int32_t column = 0; column < p->columns; ++column) {
                const int16_t *a = in1 + base1 + row * p->row_stride;
                const int16_t *b = in2 + base2 + column * p->column_stride;
                int64_t sum = 0;
                for (int32_t i = p->depth; i > 0; --i, a += p->left_stride, b += p->right_stride) {
                    sum += *a * *b;
                }
                *out++ = (int16_t)clamp(multiply_wide(sum, p->multiplier, p->shift), INT16_MIN, INT16_MAX);
            }
        }
        (void)advance(p->size, p->stride2, at2, &base2);
    } while (advance(p->size, p->stride1, at1, &base1));
}
