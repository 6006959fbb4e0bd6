/* Mean (or sum) over the reduced axes, in one multiplication. */
typedef struct {
    int32_t size[ANYNPU_AXES]; /* kept axes */
    int32_t stride[ANYNPU_AXES];
    int32_t reduced_size[ANYNPU_AXES];
    int32_t reduced_stride[ANYNPU_AXES];
    int32_t offset; /* count * input zero point, subtracted from the sum */
    int32_t multiplier;
    int32_t shift;
    int32_t out_zero;
    int32_t low;
    int32_t high;
} anynpu_mean_s8_params;

void anynpu_mean_s8(const anynpu_mean_s8_params *p, const int8_t *in, int8_t *out);
