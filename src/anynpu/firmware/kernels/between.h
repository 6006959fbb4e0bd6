/* Bilinear interpolation; a row of a table is {lower index, upper index, weight of the upper one in 1/1024}. */
typedef struct {
    int16_t lower;
    int16_t upper;
    int16_t weight;
} anynpu_between;

