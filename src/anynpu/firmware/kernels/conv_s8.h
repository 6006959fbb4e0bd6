/* Convolution: weights are out_channels rows of `length` values in the order y, x, channel, padded with zeros. */
typedef struct {
    anynpu_window window;
    const int8_t *weights;
    const anynpu_channel *channels;
    int32_t length;
    int32_t offset; /* 2 * (output zero point + 128) + 1 */
    int8_t in_zero;
} anynpu_conv_s8_params;

void anynpu_conv_s8(const anynpu_conv_s8_params *p, const int8_t *in, int8_t *out, int8_t *scratch);
