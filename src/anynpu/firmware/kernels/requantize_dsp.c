/* uses: dsp channel */
/* Scales an accumulator below 2^30 by multiplier / 2^(32 + shift) with the two roundings of TensorFlow Lite Micro, adds
   the zero point and saturates. `offset` is 2 * zero point + 1: it merges the second rounding with the addition. */
static inline int8_t requantize_dsp(int32_t accumulator, const anynpu_channel *channel, int32_t offset)
{
    const int32_t high = high_dsp(accumulator * 2, channel->multiplier);
    return (int8_t)saturated_half_dsp(((high + (high >> 31)) >> channel->shift) + offset);
}
