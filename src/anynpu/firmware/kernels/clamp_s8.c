void anynpu_clamp_s8(const anynpu_clamp_s8_params *p, const int8_t *in, int8_t *out)
{
    const int8_t low = p->low;
    const int8_t high = p->high;
    for (int32_t i = 0; i < p->count; ++i) {
        const int8_t value = in[i] < low ? low : in[i];
        out[i] = value > high ? high : value;
    }
}
