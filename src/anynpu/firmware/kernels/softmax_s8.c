/* uses: high_product divide_power reciprocal leading_zeros */
void anynpu_softmax_s8(const anynpu_softmax_s8_params *p, const int8_t *in, int8_t *out)
{
    for (int32_t row = 0; row < p->rows; ++row, in += p->length, out += p->length) {
        int32_t largest = INT8_MIN;
        for (int32_t i = 0; i < p->length; ++i) {
            largest = in[i] > largest ? in[i] : largest;
        }
        int32_t sum = 0;
        for (int32_t i = 0; i < p->length; ++i) {
            const int32_t difference = largest - in[i];
            if (difference < p->entries) {
                sum += divide_power(p->exponentials[difference], 12);
            }
        }
        const int32_t headroom = leading_zeros((uint32_t)sum);
        const int32_t fraction = (int32_t)(((uint32_t)sum << headroom) - 0x80000000U);
        const int32_t scale = reciprocal(fraction);
        const int32_t exponent = 12 - headroom + 31 - 8;
        for (int32_t i = 0; i < p->length; ++i) {
            const int32_t difference = largest - in[i];
            int32_t value = 0;
            if (difference < p->entries) {
                value = divide_power(high_product(scale, p->exponentials[difference]), exponent);
            }
            out[i] = (int8_t)((value > 255 ? 255 : value) + INT8_MIN);
        }
    }
}
