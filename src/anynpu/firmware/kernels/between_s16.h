/* A function of 16 bits, read between the entries of a table of 513. */
typedef struct {
    int32_t count;
    const int16_t *table;
} anynpu_between_s16_params;

void anynpu_between_s16(const anynpu_between_s16_params *p, const int16_t *in, int16_t *out);
