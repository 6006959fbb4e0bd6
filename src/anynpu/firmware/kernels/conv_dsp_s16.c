/* uses: window short_channel patch_s16 pair_dsp_s16 */
void anynpu_conv_dsp_s16(const anynpu_conv_dsp_s16_params *p, const int16_t *in, int16_t *out, int16_t *scratch)
{
    const anynpu_window *w = &p->window;
    const int32_t depth = w->out_channels;
    int16_t *first = scratch;
    for (int32_t batch = 0; batch < w->batches; ++batch) {
        int32_t waiting = 0;
        for (int32_t y = 0; y < w->out_height; ++y) {
            for (int32_t x = 0; x < w->out_width; ++x) {
                patch_s16(w, in, y * w->stride_y - w->pad_y, x * w->stride_x - w->pad_x, first + waiting * p->length);
                if (waiting) {
                    pair_dsp_s16(first, first + p->length, p->weights, p->channels, p->length, depth, p->low, p->high,
                                 out, out + depth);
                    out += 2 * depth;
                }
                waiting = !waiting;
            }
        }
        if (waiting) {
            pair_dsp_s16(first, first, p->weights, p->channels, p->length, depth, p->low, p->high, out, out);
            out += depth;
        }
        in += w->in_height * w->in_width * w->in_channels;
    }
}
