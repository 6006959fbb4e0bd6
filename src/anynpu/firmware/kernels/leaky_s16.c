/* uses: multiply clamp */
void anynpu_leaky_s16(const anynpu_leaky_s16_params *p, const int16_t *in, int16_t *out)
{
    for (int32_t i = 0; i < p->count; ++i) {
        const int32_t value = in[i] >= 0 ? multiply(in[i], p->multiplier1, p->shift1)
                                         : p->sign2 * multiply(in[i], p->multiplier2, p->shift2);
        out[i] = (int16_t)clamp(value, INT16_MIN, INT16_MAX);
    }
}
