/* uses: multiply clamp */
void anynpu_rescale_s16_s8(const anynpu_rescale_s16_s8_params *p, const int16_t *in, int8_t *out)
{
    for (int32_t i = 0; i < p->count; ++i) {
        const int32_t value = multiply(in[i] - p->in_zero, p->multiplier, p->shift) + p->out_zero;
        out[i] = (int8_t)clamp(value, p->low, p->high);
    }
}
