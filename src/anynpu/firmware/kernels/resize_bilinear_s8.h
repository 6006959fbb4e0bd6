typedef struct {
    const anynpu_between *rows;
    const anynpu_between *columns;
    int32_t batches;
    int32_t in_height;
    int32_t in_width;
    int32_t out_height;
    int32_t out_width;
    int32_t depth;
} anynpu_resize_bilinear_s8_params;

void anynpu_resize_bilinear_s8(const anynpu_resize_bilinear_s8_params *p, const int8_t *in, int8_t *out);
