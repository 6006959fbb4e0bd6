/* Moves elements of 1 to 8 bytes from one strided box to another; strides and offsets count bytes. */
typedef struct {
    int32_t size[ANYNPU_AXES];
    int32_t from[ANYNPU_AXES];
    int32_t to[ANYNPU_AXES];
    int32_t from_offset;
    int32_t to_offset;
    int32_t bytes; /* of one element; the last axis is walked element by element */
} anynpu_copy_params;

void anynpu_copy(const anynpu_copy_params *p, const void *in, void *out);
