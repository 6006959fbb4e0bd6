/* Elements of the first input where a condition holds, of the second elsewhere; their strides are in bytes. */
typedef struct {
    int32_t size[ANYNPU_AXES];
    int32_t stride[ANYNPU_AXES];
    int32_t stride1[ANYNPU_AXES];
    int32_t stride2[ANYNPU_AXES];
    int32_t bytes; /* of one element */
} anynpu_select_params;

void anynpu_select(const anynpu_select_params *p, const uint8_t *condition, const void *in1, const void *in2,
                   void *out);
