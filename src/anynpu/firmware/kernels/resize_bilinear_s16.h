typedef struct {
    const anynpu_between *rows;
    const anynpu_between *columns;
    int32_t batches;
    int32_t in_height;
    int32_t in_width;
    int32_t out_height;
    int32_t out_width;
    int32_t depth;
} anynpu_resize_bilinear_s16_params;

void anynpu_resize_bilinear_s16(const anynpu_resize_bilinear_s16_params *p, const int16_t *in, int16_t *out);
