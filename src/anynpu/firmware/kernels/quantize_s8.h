/* Real numbers to stored ones, halves away from zero. */
typedef struct {
    int32_t count;
    float scale;
    int32_t zero;
    int32_t low;
    int32_t high;
} anynpu_quantize_s8_params;

void anynpu_quantize_s8(const anynpu_quantize_s8_params *p, const float *in, int8_t *out);
