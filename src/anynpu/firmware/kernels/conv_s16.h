/* Any convolution of 16-bit activations with 8-bit weights: out_channels x y x x x group depth. */
typedef struct {
    anynpu_window window;
    const int8_t *weights;
    const anynpu_wide_channel *channels;
    int32_t groups;
    int32_t low;
    int32_t high;
    int32_t narrow; /* the accumulator has 32 bits, not 64 */
} anynpu_conv_s16_params;

void anynpu_conv_s16(const anynpu_conv_s16_params *p, const int16_t *in, int16_t *out);
