/* Mean (or sum) over `count` values, `stride` apart, of each of `inner` values side by side, with vector instructions. */
typedef struct {
    int32_t outer;
    int32_t outer_stride;
    int32_t inner;
    int32_t count;
    int32_t stride;
    int32_t offset; /* count * input zero point, subtracted from the sum */
    int32_t multiplier;
    int32_t shift; /* 0 or less */
    anynpu_output_range range;
} anynpu_mean_mve_s8_params;

void anynpu_mean_mve_s8(const anynpu_mean_mve_s8_params *p, const int8_t *in, int8_t *out);
