/* Depthwise convolution with vector instructions, eight channels at a time: weights of eight channels in the order y, x,
   channel, the last eight filled up with zeros. The rows under the window are copied to `lines` lines of `line` bytes
   each, with their borders, before the output is written: it may lie over the input. */
typedef struct {
    anynpu_window window;
    const int8_t *weights;
    const int32_t *channels; /* of channels 0, 2, 4, 6: biases, multipliers, shifts; then of 1, 3, 5, 7; and so on */
    int32_t lines;
    int32_t line;
    anynpu_output_range range;
    int8_t in_zero;
} anynpu_depthwise_mve_s8_params;

void anynpu_depthwise_mve_s8(const anynpu_depthwise_mve_s8_params *p, const int8_t *in, int8_t *out, int8_t *scratch);
