/* Depthwise convolution, one filter a channel: weights in the order y, x, channel. */
typedef struct {
    anynpu_window window;
    const int8_t *weights;
    const anynpu_channel *channels;
    int32_t zero2; /* 2 * output zero point + 1 */
    int32_t low;
    int32_t high;
    int8_t in_zero;
} anynpu_depthwise_s8_params;

void anynpu_depthwise_s8(const anynpu_depthwise_s8_params *p, const int8_t *in, int8_t *out, int8_t *scratch);
