/* uses: multiply clamp */
void anynpu_rescale_s16_s16(const anynpu_rescale_s16_s16_params *p, const int16_t *in, int16_t *out)
{
    for (int32_t i = 0; i < p->count; ++i) {
        const int32_t value = multiply(in[i] - p->in_zero, p->multiplier, p->shift) + p->out_zero;
        out[i] = (int16_t)clamp(value, p->low, p->high);
    }
}
