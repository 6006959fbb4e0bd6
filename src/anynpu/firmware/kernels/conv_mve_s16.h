/* Convolution of 16-bit activations, with vector instructions; rows of weights are a multiple of eight. */
typedef struct {
    anynpu_window window;
    const int8_t *weights;
    const int32_t *channels; /* four biases, four factors, and so on */
    int32_t length;
    int32_t low;
    int32_t high;
} anynpu_conv_mve_s16_params;

void anynpu_conv_mve_s16(const anynpu_conv_mve_s16_params *p, const int16_t *in, int16_t *out, int16_t *scratch);
