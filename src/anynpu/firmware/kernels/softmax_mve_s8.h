/* Softmax of each row, four values at a time; exponentials[d] is exp(-d * scale * beta) in Q0.31 for every difference d
   to the maximum. */
typedef struct {
    const int32_t *exponentials;
    int32_t entries;
    int32_t rows;
    int32_t length;
} anynpu_softmax_mve_s8_params;

void anynpu_softmax_mve_s8(const anynpu_softmax_mve_s8_params *p, const int8_t *in, int8_t *out);
