/* uses: short_channel pair_dsp_s16 */
void anynpu_pointwise_dsp_s16(const anynpu_pointwise_dsp_s16_params *p, const int16_t *in, int16_t *out)
{
    const int32_t depth = p->out_channels;
    for (int32_t left = p->rows; left > 0; left -= 2) {
        /* A last single row is its own partner. */
        const int32_t next = left > 1;
        pair_dsp_s16(in, in + next * p->depth, p->weights, p->channels, p->length, depth, p->low, p->high, out,
                     out + next * depth);
        in += 2 * p->depth;
        out += 2 * depth;
    }
}
