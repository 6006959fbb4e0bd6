/* uses: window channel gather_s8 pair_s8 */
void anynpu_conv_s8(const anynpu_conv_s8_params *p, const int8_t *in, int8_t *out, int8_t *scratch)
{
    const anynpu_window *w = &p->window;
    const int32_t depth = w->out_channels;
    for (int32_t batch = 0; batch < w->batches; ++batch) {
        int32_t waiting = 0;
        for (int32_t y = 0; y < w->out_height; ++y) {
            for (int32_t x = 0; x < w->out_width; ++x) {
                gather_s8(w, in, y * w->stride_y - w->pad_y, x * w->stride_x - w->pad_x, p->in_zero,
                          waiting ? scratch + p->length : scratch);
                if (waiting) {
                    pair_s8(scratch, scratch + p->length, p->weights, p->channels, p->length, depth, p->offset, out, out + depth);
                    out += 2 * depth;
                }
                waiting = !waiting;
            }
        }
        if (waiting) {
            pair_s8(scratch, scratch, p->weights, p->channels, p->length, depth, p->offset, out, out);
            out += depth;
        }
        in += w->in_height * w->in_width * w->in_channels;
    }
}
