/* Compares whole numbers: what is the result where the first is below, the same as or above the second. */
typedef struct {
    anynpu_pair_shape shape;
    int32_t below;
    int32_t same;
    int32_t above;
} anynpu_compare_s32_params;

void anynpu_compare_s32(const anynpu_compare_s32_params *p, const int32_t *in1, const int32_t *in2, uint8_t *out);
