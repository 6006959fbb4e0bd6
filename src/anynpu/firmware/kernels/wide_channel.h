/* One output channel of a layer with 16-bit activations. */
typedef struct {
    int64_t bias;
    int32_t multiplier;
    int32_t shift; /* left shift, -31 to 7 */
} anynpu_wide_channel;
