/* A value between two entries of a table of 513, chosen by the upper nine bits and interpolated by the lower seven. */
static inline int16_t lookup_s16(int16_t value, const int16_t *table)
{
    const int32_t index = 256 + (value >> 7);
    const int32_t offset = value & 0x7F;
    const int32_t base = table[index];
    const int32_t slope = table[index + 1] - base;
    return (int16_t)(base + ((slope * offset + 64) >> 7));
}
