/* A factor of one or less: multiplier / 2^(31 + right), rounded twice as TensorFlow Lite Micro does. */
typedef struct {
    int32_t multiplier; /* Q0.31 */
    int32_t right;
    int32_t half; /* of 2^right */
    int32_t away; /* -1, or 0 where nothing is shifted: halves of negative numbers are rounded away from zero */
} anynpu_scaling;
