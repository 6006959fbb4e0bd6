/* The larger of two values. */
typedef struct {
    anynpu_pair_shape shape;
} anynpu_maximum_s8_params;

void anynpu_maximum_s8(const anynpu_maximum_s8_params *p, const int8_t *in1, const int8_t *in2, int8_t *out);
