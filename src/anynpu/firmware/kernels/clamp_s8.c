void anynpu_clamp_s8(const anynpu_clamp_s8_params *p, int8_t *values)
{
    const int8_t low = p->low;
    const int8_t high = p->high;
    for (int32_t i = 0; i < p->count; ++i) {
        const int8_t value = values[i] < low ? low : values[i];
        values[i] = value > high ? high : value;
    }
}
