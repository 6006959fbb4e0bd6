/* Values below zero times a slope of their own. */
typedef struct {
    anynpu_pair_shape shape;
    int32_t zero1;
    int32_t zero2;
    int32_t out_zero;
    int32_t multiplier1;
    int32_t shift1;
    int32_t multiplier2;
    int32_t shift2;
} anynpu_prelu_s8_params;

void anynpu_prelu_s8(const anynpu_prelu_s8_params *p, const int8_t *in1, const int8_t *in2, int8_t *out);
