/* One output channel of 16-bit activations: its bias, and the factor accumulator -> output. */
typedef struct {
    int32_t bias;
    int32_t multiplier; /* times 2^-32, rounded once */
} anynpu_short_channel;
