/* Compares integers of 16 bits and one scale: what is the result where the first is below, the same as or above the
   second. */
typedef struct {
    anynpu_pair_shape shape;
    int32_t below;
    int32_t same;
    int32_t above;
} anynpu_compare_s16_params;

void anynpu_compare_s16(const anynpu_compare_s16_params *p, const int16_t *in1, const int16_t *in2, uint8_t *out);
