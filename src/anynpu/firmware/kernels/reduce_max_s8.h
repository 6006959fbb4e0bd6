/* The maximum over the reduced axes. */
typedef struct {
    int32_t size[ANYNPU_AXES]; /* kept axes */
    int32_t stride[ANYNPU_AXES];
    int32_t reduced_size[ANYNPU_AXES];
    int32_t reduced_stride[ANYNPU_AXES];
} anynpu_reduce_max_s8_params;

void anynpu_reduce_max_s8(const anynpu_reduce_max_s8_params *p, const int8_t *in, int8_t *out);
