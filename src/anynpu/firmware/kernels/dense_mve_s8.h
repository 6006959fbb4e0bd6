/* One vector through a dense layer, with vector instructions. Reads it up to `length`, a multiple of 16: there the
   weights are zero, and whatever lies behind the vector does not matter. */
typedef struct {
    const int8_t *weights;
    const int32_t *channels; /* four biases, four multipliers, four shifts; and so on */
    int32_t length;
    int32_t out_channels;
    anynpu_output_range range;
} anynpu_dense_mve_s8_params;

void anynpu_dense_mve_s8(const anynpu_dense_mve_s8_params *p, const int8_t *in, int8_t *out);
