/* Products of matrices, one for each position of the batch axes. */
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
    int32_t zero1;
    int32_t zero2;
    int32_t out_zero;
    int32_t multiplier;
    int32_t shift;
} anynpu_matmul_s8_params;

void anynpu_matmul_s8(const anynpu_matmul_s8_params *p, const int8_t *in1, const int8_t *in2, int8_t *out);
