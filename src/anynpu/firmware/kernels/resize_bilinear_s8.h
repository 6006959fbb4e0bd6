/* Bilinear interpolation; a row of a table is {lower index, upper index, weight of the upper one in 1/1024}. */
typedef struct {
    int16_t lower;
    int16_t upper;
    int16_t weight;
} anynpu_between;

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
