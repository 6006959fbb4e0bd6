/* The zero point of an output, and the values that it stays between. */
typedef struct {
    int32_t zero;
    int32_t low;
    int32_t high;
} anynpu_output_range;
