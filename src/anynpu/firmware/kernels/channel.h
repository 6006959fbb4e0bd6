/* One output channel: its bias with the input's zero point folded in, and the factor accumulator -> output. */
typedef struct {
    int32_t bias;
    int32_t multiplier; /* Q0.31 */
    int32_t shift;      /* fast kernels: right shift less one, 0 to 29; general kernels: left shift, -31 to 30 */
} anynpu_channel;
