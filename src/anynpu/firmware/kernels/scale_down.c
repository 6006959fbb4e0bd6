/* uses: scaling */
/* Scales half of `twice`. */
static inline int32_t scale_down(int32_t twice, anynpu_scaling s)
{
    const int32_t high = (int32_t)(((int64_t)twice * s.multiplier + ((int64_t)1 << 31)) >> 32);
    return (high + (high < 0 ? s.away : 0) + s.half) >> s.right;
}
