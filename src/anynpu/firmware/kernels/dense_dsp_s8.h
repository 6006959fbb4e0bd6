/* One vector through a dense layer, two products at a time; weights as in pointwise_dsp_s8. */
typedef struct {
    const int32_t *weights;
    const anynpu_channel *channels;
    int32_t length;
    int32_t out_channels;
    int32_t offset; /* 2 * output zero point + 1 */
} anynpu_dense_dsp_s8_params;

void anynpu_dense_dsp_s8(const anynpu_dense_dsp_s8_params *p, const int8_t *in, int8_t *out);
