void anynpu_fill(const anynpu_fill_params *p, void *out)
{
    uint8_t *to = (uint8_t *)out;
    if (p->bytes == 1) {
        memset(to, p->value[0], (size_t)p->count);
        return;
    }
    for (int32_t i = p->count; i > 0; --i, to += p->bytes) {
        memcpy(to, p->value, (size_t)p->bytes);
    }
}
