/* Convolution with vector instructions: weights are rows of `length` values in the order y, x, channel, padded with zeros
   to a multiple of 16; rows of zeros make the number of rows a multiple of four. */
typedef struct {
    anynpu_window window;
    const int8_t *weights;
    const int32_t *channels; /* four biases, four multipliers, four shifts; and so on */
    int32_t length;
    anynpu_output_range range;
    int8_t in_zero;
} anynpu_conv_mve_s8_params;

void anynpu_conv_mve_s8(const anynpu_conv_mve_s8_params *p, const int8_t *in, int8_t *out, int8_t *scratch);
