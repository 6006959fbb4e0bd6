/* Sum (or, with a negative sign, difference) of two tensors of any scales, with vector instructions. */
typedef struct {
    anynpu_pair_shape shape;
    int32_t left_shift;
    int32_t zero1;
    int32_t zero2;
    int32_t multiplier1;
    int32_t multiplier2;
    int32_t multiplier;
    int32_t shift1; /* 0 or less */
    int32_t shift2;
    int32_t shift;
    int32_t sign; /* 1 adds, -1 subtracts */
    anynpu_output_range range;
} anynpu_add_mve_s8_params;

void anynpu_add_mve_s8(const anynpu_add_mve_s8_params *p, const int8_t *in1, const int8_t *in2, int8_t *out);
