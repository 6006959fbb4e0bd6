/* uses: output_range single_mve_s8 */
void anynpu_dense_mve_s8(const anynpu_dense_mve_s8_params *p, const int8_t *in, int8_t *out)
{
    single_mve_s8(in, p->weights, p->channels, p->length, p->out_channels, p->range, out);
}
