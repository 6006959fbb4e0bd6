void anynpu_curve_s16(const anynpu_curve_s16_params *p, const int16_t *in, int16_t *out)
{
    const int32_t round = p->shift > 0 ? 1 << (p->shift - 1) : 0;
    for (int32_t i = 0; i < p->count; ++i) {
        const int32_t scaled = (in[i] * p->multiplier + round) >> p->shift;
        const int32_t distance = scaled < 0 ? -scaled : scaled;
        const int32_t place = distance >> p->bits;
        int32_t value;
        if (place >= 255) {
            value = p->bits == 9 ? 0x7FFF << 10 : 0xFFFF << 8;
        } else {
            const int32_t below = p->table[place], above = p->table[place + 1];
            value = (below << p->bits) + (distance & ((1 << p->bits) - 1)) * (above - below);
        }
        if (p->bits == 9) {
            value = scaled >= 0 ? value + 512 : (1 << 25) - value + 511;
            out[i] = (int16_t)(value >> 10);
        } else {
            value = scaled >= 0 ? value - (1 << 23) + 128 : (1 << 23) - value + 127;
            out[i] = (int16_t)(value >> 8);
        }
    }
}
