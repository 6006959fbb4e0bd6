/* The same dense layer at every one of `rows` vectors of `depth` values, two products at a time. Rows of weights are
   filled up with zeros to `length`, a multiple of four, and packed for two channels each. Vectors are read up to
   `length`: whatever lies behind a vector does not matter. */
typedef struct {
    const int32_t *weights;
    const anynpu_channel *channels;
    int32_t rows;
    int32_t depth;
    int32_t length;
    int32_t out_channels;
    int32_t offset; /* 2 * output zero point + 1 */
} anynpu_pointwise_dsp_s8_params;

void anynpu_pointwise_dsp_s8(const anynpu_pointwise_dsp_s8_params *p, const int8_t *in, int8_t *out, int32_t *scratch);
