/* uses: clamp */
void anynpu_gather(const anynpu_gather_params *p, const void *in, const int32_t *indices, void *out)
{
    const uint8_t *from = (const uint8_t *)in;
    uint8_t *to = (uint8_t *)out;
    for (int32_t batch = 0; batch < p->batches; ++batch, indices += p->count) {
        for (int32_t outer = 0; outer < p->outer; ++outer, from += p->axis * p->bytes) {
            for (int32_t i = 0; i < p->count; ++i, to += p->bytes) {
                memcpy(to, from + clamp(indices[i], 0, p->axis - 1) * p->bytes, (size_t)p->bytes);
            }
        }
    }
}
