/* Keeps values between two bounds, in place: fused activations that the range of the type does not give already. */
typedef struct {
    int32_t count;
    int8_t low;
    int8_t high;
} anynpu_clamp_s8_params;

void anynpu_clamp_s8(const anynpu_clamp_s8_params *p, int8_t *values);
