/* Depthwise convolution of 16-bit activations with one filter for each channel. `scratch` holds one window and one value
   more, where a window can reach outside of the image. */
typedef struct {
    anynpu_window window;
    const int32_t *weights; /* two channels at a time, for each tap a word of 16 bits each */
    const anynpu_short_channel *channels;
    int32_t low;
    int32_t high;
} anynpu_depthwise_dsp_s16_params;

void anynpu_depthwise_dsp_s16(const anynpu_depthwise_dsp_s16_params *p, const int16_t *in, int16_t *out,
                              int16_t *scratch);
