/* Each output pixel is the input pixel that the tables name. */
typedef struct {
    const int16_t *rows;
    const int16_t *columns;
    int32_t batches;
    int32_t in_height;
    int32_t in_width;
    int32_t out_height;
    int32_t out_width;
    int32_t bytes; /* of one pixel */
} anynpu_resize_nearest_params;

void anynpu_resize_nearest(const anynpu_resize_nearest_params *p, const void *in, void *out);
