/* Transposed convolution of 16-bit activations. Weights: out_channels x y x x x in_channels. */
typedef struct {
    anynpu_window window;
    const int8_t *weights;
    const anynpu_wide_channel *channels;
    int32_t low;
    int32_t high;
} anynpu_transpose_conv_s16_params;

void anynpu_transpose_conv_s16(const anynpu_transpose_conv_s16_params *p, const int16_t *in, int16_t *out);
