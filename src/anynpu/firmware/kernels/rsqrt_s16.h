/* 1 / sqrt of every value; the largest number for what is not above zero. */
typedef struct {
    int32_t count;
    int32_t multiplier;
    int32_t shift;
} anynpu_rsqrt_s16_params;

void anynpu_rsqrt_s16(const anynpu_rsqrt_s16_params *p, const int16_t *in, int16_t *out);
