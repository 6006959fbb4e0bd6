static inline int32_t leading_zeros(uint32_t value)
{
    int32_t count = 0;
    while (count < 32 && !(value & 0x80000000U)) {
        value <<= 1;
        ++count;
    }
    return count;
}
