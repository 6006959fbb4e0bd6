/* uses: channel pair_s8 */
void anynpu_pointwise_s8(const anynpu_pointwise_s8_params *p, const int8_t *in, int8_t *out)
{
    const int32_t length = p->length;
    const int32_t depth = p->out_channels;
    int32_t left = p->rows;
    for (; left > 0; left -= 2) {
        /* A last single row is its own partner. */
        const int32_t next = left > 1;
        pair_s8(in, in + next * length, p->weights, p->channels, length, depth, p->offset, out,
                out + next * depth);
        in += 2 * length;
        out += 2 * depth;
    }
}
