/* uses: output_range triple_mve_s8 single_mve_s8 */
void anynpu_pointwise_mve_s8(const anynpu_pointwise_mve_s8_params *p, const int8_t *in, int8_t *out)
{
    const int32_t depth = p->out_channels;
    int32_t left = p->rows;
    for (; left >= 3; left -= 3, in += 3 * p->stride, out += 3 * depth) {
        triple_mve_s8(in, p->stride, p->weights, p->channels, p->length, depth, p->range, out);
    }
    for (; left > 0; --left, in += p->stride, out += depth) {
        single_mve_s8(in, p->weights, p->channels, p->length, depth, p->range, out);
    }
}
