/* Stored numbers to real ones. */
typedef struct {
    int32_t count;
    float scale;
    int32_t zero;
} anynpu_dequantize_s8_params;

void anynpu_dequantize_s8(const anynpu_dequantize_s8_params *p, const int8_t *in, float *out);
