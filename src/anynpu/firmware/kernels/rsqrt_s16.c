/* uses: inverse_root multiply clamp */
void anynpu_rsqrt_s16(const anynpu_rsqrt_s16_params *p, const int16_t *in, int16_t *out)
{
    for (int32_t i = 0; i < p->count; ++i) {
        if (in[i] <= 0) {
            out[i] = INT16_MAX;
            continue;
        }
        int32_t shift;
        const int32_t inverse = inverse_root(in[i], &shift);
        const int32_t scaled = multiply(1, inverse, shift + 20);
        out[i] = (int16_t)clamp(multiply(scaled, p->multiplier, p->shift - 20), INT16_MIN, INT16_MAX);
    }
}
