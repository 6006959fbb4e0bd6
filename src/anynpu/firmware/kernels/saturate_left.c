static inline int32_t saturate_left(int32_t value, int32_t bits)
{
    const int32_t limit = INT32_MAX >> bits;
    if (value > limit) {
        return INT32_MAX;
    }
    return value < -limit - 1 ? INT32_MIN : value * (1 << bits);
}
