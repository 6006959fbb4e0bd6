/* Keeps values between two bounds; `out` may be `in`. */
typedef struct {
    int32_t count;
    int8_t low;
    int8_t high;
} anynpu_clamp_s8_params;

void anynpu_clamp_s8(const anynpu_clamp_s8_params *p, const int8_t *in, int8_t *out);
