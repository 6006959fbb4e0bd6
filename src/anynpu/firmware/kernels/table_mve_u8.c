/* uses: mve */
void anynpu_table_mve_u8(const anynpu_table_mve_u8_params *p, const uint8_t *in, uint8_t *out)
{
    const uint8_t *table = p->table;
    int32_t left = p->count;
    for (; left > 15; left -= 16, in += 16, out += 16) {
        vstrbq_u8(out, vldrbq_gather_offset_u8(table, vldrbq_u8(in)));
    }
    if (left > 0) {
        const mve_pred16_t some = vctp8q((uint32_t)left);
        vstrbq_p_u8(out, vldrbq_gather_offset_u8(table, vldrbq_z_u8(in, some)), some);
    }
}
