/* uses: dots_mve_s16 */
void anynpu_pointwise_mve_s16(const anynpu_pointwise_mve_s16_params *p, const int16_t *in, int16_t *out)
{
    const int32_t depth = p->out_channels;
    int32_t left = p->rows;
    for (; left > 1; left -= 2, in += 2 * p->depth, out += 2 * depth) {
        double_mve_s16(in, in + p->depth, p->weights, p->channels, p->length, depth, p->low, p->high, out);
    }
    if (left > 0) {
        single_mve_s16(in, p->weights, p->channels, p->length, depth, p->low, p->high, out);
    }
}
