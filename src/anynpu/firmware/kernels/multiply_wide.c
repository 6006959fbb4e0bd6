/* Multiplies a sum of up to 48 bits by multiplier * 2^(shift - 31) with a multiplier of 16 bits, rounded once. */
static inline int32_t multiply_wide(int64_t value, int32_t multiplier, int32_t shift)
{
    const int64_t reduced = multiplier < 0x7FFF0000 ? (multiplier + (1 << 15)) >> 16 : 0x7FFF;
    const int32_t right = 15 - shift;
    return (int32_t)((value * reduced + ((int64_t)1 << (right - 1))) >> right);
}
