/* Sets elements of 1 to 8 bytes to one value. */
typedef struct {
    int32_t count;
    int32_t bytes; /* of one element */
    uint8_t value[8];
} anynpu_fill_params;

void anynpu_fill(const anynpu_fill_params *p, void *out);
