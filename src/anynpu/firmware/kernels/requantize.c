/* Scales an accumulator below 2^30 by multiplier / 2^(32 + shift) with the two roundings of TensorFlow Lite Micro, and
   adds the zero point; `offset` is 2 * zero point + 1, which merges the second rounding with the addition. */
static inline int32_t requantize(int32_t accumulator, const anynpu_channel *channel, int32_t offset)
{
    const int64_t product = (int64_t)(accumulator * 2) * channel->multiplier;
    const int32_t high = (int32_t)((product + ((int64_t)1 << 31)) >> 32);
    return (((high + (high >> 31)) >> channel->shift) + offset) >> 1;
}
