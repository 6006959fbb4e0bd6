/* Depthwise convolution, one filter a channel: weights of four channels at a time in the order y, x, channel; those of
   the last one to three channels follow one by one. */
typedef struct {
    anynpu_window window;
    const int8_t *weights;
    const anynpu_channel *channels;
    int32_t offset; /* 2 * (output zero point + 128) + 1 */
    int8_t in_zero;
} anynpu_depthwise_s8_params;

void anynpu_depthwise_s8(const anynpu_depthwise_s8_params *p, const int8_t *in, int8_t *out, int8_t *scratch);
