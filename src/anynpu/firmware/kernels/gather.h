/* Slices along one axis, chosen by indices; an index outside of the axis takes the nearest slice. */
typedef struct {
    int32_t batches;
    int32_t outer;
    int32_t axis;
    int32_t count; /* indices of one batch */
    int32_t bytes; /* of one slice */
} anynpu_gather_params;

void anynpu_gather(const anynpu_gather_params *p, const void *in, const int32_t *indices, void *out);
