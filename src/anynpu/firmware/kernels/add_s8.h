/* Sum (or, with a negative sign, difference) of two tensors of any scales: both are first brought to one. */
typedef struct {
    anynpu_pair_shape shape;
    int32_t twice; /* twice the factor that gives values more bits */
    int32_t zero1;
    int32_t zero2;
    anynpu_scaling scaling1;
    anynpu_scaling scaling2;
    anynpu_scaling scaling; /* of the sum */
    int32_t out_zero;
    int32_t low;
    int32_t high;
    int32_t sign; /* 1 adds, -1 subtracts */
} anynpu_add_s8_params;

void anynpu_add_s8(const anynpu_add_s8_params *p, const int8_t *in1, const int8_t *in2, int8_t *out);
