/* Scales an accumulator below 2^30 by multiplier / 2^(32 + shift) with the two roundings of TensorFlow Lite Micro, adds
   the zero point and saturates. `offset` is 2 * (zero point + 128) + 1: it merges the second rounding with the addition,
   and moves the range to 0..255, where compilers find the processor's saturating instruction. */
static inline int8_t requantize(int32_t accumulator, const anynpu_channel *channel, int32_t offset)
{
    const int64_t product = (int64_t)(accumulator * 2) * channel->multiplier;
    const int32_t high = (int32_t)((product + ((int64_t)1 << 31)) >> 32);
    int32_t value = (((high - (high < 0 ? 1 : 0)) >> channel->shift) + offset) >> 1;
    value = value < 0 ? 0 : value;
    value = value > 255 ? 255 : value;
    return (int8_t)(value - 128);
}
