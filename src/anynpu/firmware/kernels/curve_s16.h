/* LOGISTIC (bits = 9) or TANH (bits = 8) of every value, between the entries of a table of LOGISTIC. */
typedef struct {
    int32_t count;
    int32_t multiplier;
    int32_t shift;
    int32_t bits;
    const uint16_t *table;
} anynpu_curve_s16_params;

void anynpu_curve_s16(const anynpu_curve_s16_params *p, const int16_t *in, int16_t *out);
