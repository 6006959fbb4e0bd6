/* One vector through a dense layer. */
typedef struct {
    const int8_t *weights;
    const anynpu_channel *channels;
    int32_t length;
    int32_t out_channels;
    int32_t zero2; /* 2 * output zero point + 1 */
    int32_t low;
    int32_t high;
} anynpu_dense_s8_params;

void anynpu_dense_s8(const anynpu_dense_s8_params *p, const int8_t *in, int8_t *out);
