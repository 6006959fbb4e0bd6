/* Compares integers of one scale: what is the result where the first is below, the same as or above the second. */
typedef struct {
    anynpu_pair_shape shape;
    int32_t below;
    int32_t same;
    int32_t above;
} anynpu_compare_s8_params;

void anynpu_compare_s8(const anynpu_compare_s8_params *p, const int8_t *in1, const int8_t *in2, int8_t *out);
