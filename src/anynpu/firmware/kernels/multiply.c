/* Multiplies by multiplier * 2^(shift - 31), rounded twice as TensorFlow Lite Micro does; shift is -31 to 30. */
static inline int32_t multiply(int32_t value, int32_t multiplier, int32_t shift)
{
    const int32_t right = shift > 0 ? 0 : -shift;
    const int32_t wide = (int32_t)((uint32_t)value << (shift > 0 ? shift : 0));
    const int32_t high = (int32_t)(((int64_t)wide * multiplier + ((int64_t)1 << 30)) >> 31);
    const int32_t mask = (int32_t)(((uint32_t)1 << right) - 1U);
    const int32_t threshold = (mask >> 1) + (high < 0 ? 1 : 0);
    return (high >> right) + ((high & mask) > threshold ? 1 : 0);
}
