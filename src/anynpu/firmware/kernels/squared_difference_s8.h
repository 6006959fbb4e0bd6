/* Square of the difference of two tensors. */
typedef struct {
    anynpu_pair_shape shape;
    int32_t left_shift;
    int32_t zero1;
    int32_t zero2;
    int32_t out_zero;
    int32_t multiplier1;
    int32_t multiplier2;
    int32_t multiplier;
    int32_t shift1;
    int32_t shift2;
    int32_t shift;
    int32_t low;
    int32_t high;
} anynpu_squared_difference_s8_params;

void anynpu_squared_difference_s8(const anynpu_squared_difference_s8_params *p, const int8_t *in1, const int8_t *in2, int8_t *out);
