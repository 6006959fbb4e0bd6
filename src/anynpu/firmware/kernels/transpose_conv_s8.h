/* Transposed convolution, as the sum that each output pixel gathers. Weights: out_channels x y x x x in_channels. */
typedef struct {
    anynpu_window window;
    const int8_t *weights;
    const anynpu_channel *channels;
    int32_t in_zero;
    int32_t out_zero;
    int32_t low;
    int32_t high;
} anynpu_transpose_conv_s8_params;

void anynpu_transpose_conv_s8(const anynpu_transpose_conv_s8_params *p, const int8_t *in, int8_t *out);
