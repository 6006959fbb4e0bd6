/* Any convolution: groups, depth multipliers, factors above one half. Weights: out_channels x y x x x group depth. */
typedef struct {
    anynpu_window window;
    const int8_t *weights;
    const anynpu_channel *channels;
    int32_t groups;
    int32_t out_zero;
    int32_t low;
    int32_t high;
    int32_t in_zero;
} anynpu_conv_any_s8_params;

void anynpu_conv_any_s8(const anynpu_conv_any_s8_params *p, const int8_t *in, int8_t *out);
