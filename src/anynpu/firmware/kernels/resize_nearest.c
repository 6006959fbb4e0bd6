void anynpu_resize_nearest(const anynpu_resize_nearest_params *p, const void *in, void *out)
{
    const uint8_t *from = (const uint8_t *)in;
    uint8_t *to = (uint8_t *)out;
    for (int32_t batch = 0; batch < p->batches; ++batch, from += p->in_height * p->in_width * p->bytes) {
        for (int32_t y = 0; y < p->out_height; ++y) {
            const uint8_t *row = from + p->rows[y] * p->in_width * p->bytes;
            for (int32_t x = 0; x < p->out_width; ++x, to += p->bytes) {
                memcpy(to, row + p->columns[x] * p->bytes, (size_t)p->bytes);
            }
        }
    }
}
