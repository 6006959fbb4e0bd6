/* Values below zero times one slope. */
typedef struct {
    int32_t count;
    int32_t multiplier1;
    int32_t shift1;
    int32_t multiplier2;
    int32_t shift2;
    int32_t sign2;
} anynpu_leaky_s16_params;

void anynpu_leaky_s16(const anynpu_leaky_s16_params *p, const int16_t *in, int16_t *out);
