/* Softmax of each row by two interpolated tables: exp(x) for -10 to 0, and 1 / (1 + x) for 0 to 1. */
typedef struct {
    const int16_t *exponentials;
    const int16_t *reciprocals;
    int32_t multiplier;
    int32_t shift;
    int32_t rows;
    int32_t length;
} anynpu_softmax_s16_params;

void anynpu_softmax_s16(const anynpu_softmax_s16_params *p, const int16_t *in, int16_t *out);
