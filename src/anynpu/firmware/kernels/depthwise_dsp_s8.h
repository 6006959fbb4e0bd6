/* Depthwise convolution with one filter for each channel, two products of 16 bits from one word. `scratch` holds one
   window and three bytes more, where a window can reach outside of the image. */
typedef struct {
    anynpu_window window;
    const int32_t *weights; /* four channels at a time: for each tap channels 0 and 2, then 1 and 3, of 16 bits */
    const anynpu_channel *channels;
    int32_t offset; /* 2 * output zero point + 1 */
    int8_t in_zero;
} anynpu_depthwise_dsp_s8_params;

void anynpu_depthwise_dsp_s8(const anynpu_depthwise_dsp_s8_params *p, const int8_t *in, int8_t *out, int8_t *scratch);
