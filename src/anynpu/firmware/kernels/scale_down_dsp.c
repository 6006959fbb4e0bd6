/* uses: dsp scaling */
/* Scales half of `twice`. */
static inline int32_t scale_down_dsp(int32_t twice, anynpu_scaling s)
{
    const int32_t high = high_dsp(twice, s.multiplier);
    return (high + ((high >> 31) & s.away) + s.half) >> s.right;
}
