/* Dot products of rows of 16-bit values, with vector instructions; rows of weights are a multiple of eight. */
typedef struct {
    const int8_t *weights;
    const int32_t *channels; /* four biases, four factors, and so on */
    int32_t rows;
    int32_t depth; /* of a row of the input */
    int32_t length;
    int32_t out_channels;
    int32_t low;
    int32_t high;
} anynpu_pointwise_mve_s16_params;

void anynpu_pointwise_mve_s16(const anynpu_pointwise_mve_s16_params *p, const int16_t *in, int16_t *out);
