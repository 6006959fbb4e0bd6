/* Convolution, two products at a time: weights as in pointwise_dsp_s8, their rows in the order y, x, channel. */
typedef struct {
    anynpu_window window;
    const int32_t *weights;
    const anynpu_channel *channels;
    int32_t length;
    int32_t offset; /* 2 * output zero point + 1 */
    int8_t in_zero;
} anynpu_conv_dsp_s8_params;

void anynpu_conv_dsp_s8(const anynpu_conv_dsp_s8_params *p, const int8_t *in, int8_t *out, int32_t *scratch);
