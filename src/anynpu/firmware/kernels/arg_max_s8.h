/* Where the largest (sign 1) or smallest (sign -1) value along an axis is; the first of equal ones. */
typedef struct {
    int32_t outer;
    int32_t axis;
    int32_t inner;
    int32_t sign;
} anynpu_arg_max_s8_params;

void anynpu_arg_max_s8(const anynpu_arg_max_s8_params *p, const int8_t *in, int32_t *out);
