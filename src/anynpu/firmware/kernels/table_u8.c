void anynpu_table_u8(const anynpu_table_u8_params *p, const uint8_t *in, uint8_t *out)
{
    const uint8_t *table = p->table;
    for (int32_t i = p->count; i > 0; --i) {
        *out++ = table[*in++];
    }
}
