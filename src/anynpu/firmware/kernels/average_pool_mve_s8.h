/* Average pool with vector instructions, eight channels at a time, or four. */
typedef struct {
    anynpu_window window;
    int32_t low;
    int32_t high;
} anynpu_average_pool_mve_s8_params;

void anynpu_average_pool_mve_s8(const anynpu_average_pool_mve_s8_params *p, const int8_t *in, int8_t *out);
