/* uses: channel pair_dsp_s8 */
void anynpu_pointwise_dsp_s8(const anynpu_pointwise_dsp_s8_params *p, const int8_t *in, int8_t *out, int32_t *scratch)
{
    const int32_t depth = p->out_channels;
    const int32_t length = p->length;
    const int32_t words = length >> 1;
    for (int32_t left = p->rows; left > 0; left -= 2) {
        /* A last single row is its own partner. */
        const int32_t next = left > 1;
        widen_dsp_s8(in, scratch, length);
        if (next) {
            widen_dsp_s8(in + p->depth, scratch + words, length);
        }
        pair_dsp_s8(scratch, scratch + next * words, p->weights, p->channels, length, depth, p->offset, out,
                    out + next * depth);
        in += 2 * p->depth;
        out += 2 * depth;
    }
}
