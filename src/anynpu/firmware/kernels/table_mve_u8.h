/* Looks bytes up in a table of 256, ordered by the bytes themselves, 16 at a time. */
typedef struct {
    const uint8_t *table;
    int32_t count;
} anynpu_table_mve_u8_params;

void anynpu_table_mve_u8(const anynpu_table_mve_u8_params *p, const uint8_t *in, uint8_t *out);
