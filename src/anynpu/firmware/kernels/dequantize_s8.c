void anynpu_dequantize_s8(const anynpu_dequantize_s8_params *p, const int8_t *in, float *out)
{
    for (int32_t i = 0; i < p->count; ++i) {
        out[i] = p->scale * (float)(in[i] - p->zero);
    }
}
