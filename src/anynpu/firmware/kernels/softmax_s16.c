/* uses: multiply clamp lookup_s16 leading_zeros */
void anynpu_softmax_s16(const anynpu_softmax_s16_params *p, const int16_t *in, int16_t *out)
{
    for (int32_t row = 0; row < p->rows; ++row, in += p->length, out += p->length) {
        int32_t largest = INT16_MIN;
        for (int32_t i = 0; i < p->length; ++i) {
            largest = in[i] > largest ? in[i] : largest;
        }
        int32_t sum = 0;
        for (int32_t i = 0; i < p->length; ++i) {
            const int32_t scaled = multiply(in[i] - largest, p->multiplier, p->shift) + INT16_MAX;
            out[i] = lookup_s16((int16_t)clamp(scaled, INT16_MIN, INT16_MAX), p->exponentials);
            sum += out[i];
        }
        const int32_t headroom = leading_zeros((uint32_t)sum);
        const int32_t shifted = (int32_t)((((int64_t)sum << (headroom - 1)) + (1 << 13)) >> 14) - (1 << 15) - (1 << 16);
        const int32_t scale = lookup_s16((int16_t)clamp(shifted, INT16_MIN, INT16_MAX), p->reciprocals);
        const int32_t right = 31 - headroom;
        for (int32_t i = 0; i < p->length; ++i) {
            const int64_t value = ((int64_t)out[i] * scale + ((int64_t)1 << (right - 1))) >> right;
            out[i] = (int16_t)clamp((int32_t)value, 0, INT16_MAX);
        }
    }
}
