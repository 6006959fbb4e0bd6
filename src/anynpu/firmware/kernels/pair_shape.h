/* Two operands walked together, broadcast by strides of 0; the last axis is the fastest. */
typedef struct {
    int32_t size[ANYNPU_AXES];
    int32_t stride1[ANYNPU_AXES];
    int32_t stride2[ANYNPU_AXES];
} anynpu_pair_shape;
