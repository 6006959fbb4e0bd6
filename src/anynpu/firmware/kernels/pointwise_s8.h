/* The same dense layer at every one of `rows` contiguous vectors: a 1x1 convolution, or a batch of dense layers. */
typedef struct {
    const int8_t *weights;
    const anynpu_channel *channels;
    int32_t rows;
    int32_t length;
    int32_t out_channels;
    int32_t offset; /* 2 * (output zero point + 128) + 1 */
} anynpu_pointwise_s8_params;

void anynpu_pointwise_s8(const anynpu_pointwise_s8_params *p, const int8_t *in, int8_t *out);
