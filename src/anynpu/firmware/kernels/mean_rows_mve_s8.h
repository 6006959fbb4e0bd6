/* Mean (or sum) of each row of `count` values, with vector instructions. */
typedef struct {
    int32_t rows;
    int32_t count;
    int32_t offset; /* count * input zero point, subtracted from the sum */
    int32_t multiplier;
    int32_t shift;
    anynpu_output_range range;
} anynpu_mean_rows_mve_s8_params;

void anynpu_mean_rows_mve_s8(const anynpu_mean_rows_mve_s8_params *p, const int8_t *in, int8_t *out);
