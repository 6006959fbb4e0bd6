/* Dot products of rows of 16-bit values, two products at a time; rows of weights are a multiple of four. */
typedef struct {
    const int32_t *weights; /* of four, bytes 0 and 2 are the first two */
    const anynpu_short_channel *channels;
    int32_t rows;
    int32_t depth; /* of a row of the input */
    int32_t length;
    int32_t out_channels;
    int32_t low;
    int32_t high;
} anynpu_pointwise_dsp_s16_params;

void anynpu_pointwise_dsp_s16(const anynpu_pointwise_dsp_s16_params *p, const int16_t *in, int16_t *out);
