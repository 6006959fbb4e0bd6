/* Product of two tensors, with vector instructions. */
typedef struct {
    anynpu_pair_shape shape;
    int32_t zero1;
    int32_t zero2;
    int32_t multiplier;
    int32_t shift; /* 0 or less */
    anynpu_output_range range;
} anynpu_mul_mve_s8_params;

void anynpu_mul_mve_s8(const anynpu_mul_mve_s8_params *p, const int8_t *in1, const int8_t *in2, int8_t *out);
