/* Depthwise convolution of 16-bit activations with one filter for each channel, with vector instructions. `scratch` holds
   one window and seven values more, where a window can reach outside of the image. */
typedef struct {
    anynpu_window window;
    const int8_t *weights;   /* eight channels at a time */
    const int32_t *channels; /* of the even ones of eight four biases, four factors; then of the odd ones */
    int32_t low;
    int32_t high;
} anynpu_depthwise_mve_s16_params;

void anynpu_depthwise_mve_s16(const anynpu_depthwise_mve_s16_params *p, const int16_t *in, int16_t *out,
                              int16_t *scratch);
