/* Changes the quantisation, between two bounds. */
typedef struct {
    int32_t count;
    int32_t in_zero;
    int32_t out_zero;
    int32_t multiplier;
    int32_t shift;
    int32_t low;
    int32_t high;
} anynpu_rescale_s16_s8_params;

void anynpu_rescale_s16_s8(const anynpu_rescale_s16_s8_params *p, const int16_t *in, int8_t *out);
