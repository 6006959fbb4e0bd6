/* Changes the quantisation, between two bounds. */
typedef struct {
    int32_t count;
    int32_t in_zero;
    int32_t out_zero;
    int32_t multiplier;
    int32_t shift;
    int32_t low;
    int32_t high;
} anynpu_rescale_s16_s16_params;

void anynpu_rescale_s16_s16(const anynpu_rescale_s16_s16_params *p, const int16_t *in, int16_t *out);
