/* uses: clamp */
void anynpu_quantize_s8(const anynpu_quantize_s8_params *p, const float *in, int8_t *out)
{
    const float limit = 131072.0f; /* beyond every stored value, and well inside 32 bits */
    for (int32_t i = 0; i < p->count; ++i) {
        float steps = in[i] / p->scale;
        steps = steps > -limit ? steps : -limit; /* takes what is not a number as well */
        steps = steps < limit ? steps : limit;
        int32_t whole = (int32_t)steps;
        const float rest = steps - (float)whole;
        whole += rest >= 0.5f ? 1 : 0;
        whole -= rest <= -0.5f ? 1 : 0;
        out[i] = (int8_t)clamp(whole + p->zero, p->low, p->high);
    }
}
