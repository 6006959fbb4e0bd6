/* Products of matrices of 16 bits, whose zero points are 0; sums have 64 bits. */
typedef struct {
    int32_t size[ANYNPU_AXES]; /* batch axes */
    int32_t stride1[ANYNPU_AXES];
    int32_t stride2[ANYNPU_AXES];
    int32_t rows;
    int32_t columns;
    int32_t depth;
    int32_t row_stride; /* of the left matrix */
    int32_t left_stride;
    int32_t column_stride; /* of the right matrix */
    int32_t right_stride;
    int32_t multiplier;
    int32_t shift;
} anynpu_matmul_s16_params;

void anynpu_matmul_s16(const anynpu_matmul_s16_params *p, const int16_t *in1, const int16_t *in2, int16_t *out);
