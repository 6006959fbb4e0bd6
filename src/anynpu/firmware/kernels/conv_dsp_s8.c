/* uses: window channel gather_s8 pair_dsp_s8 */
/* Widens the part of the image under the window at (y, x), as gather_s8 copies it: it lies in the second half of its
   place first, and what is written of it stays behind what is still to be read. */
static void gather_dsp_s8(const anynpu_conv_dsp_s8_params *p, const int8_t *in, int32_t y, int32_t x, int32_t *patch)
{
    int8_t *narrow = (int8_t *)(void *)patch + p->length;
    gather_s8(&p->window, in, y, x, p->in_zero, narrow);
    widen_dsp_s8(narrow, patch, p->length);
}

void anynpu_conv_dsp_s8(const anynpu_conv_dsp_s8_params *p, const int8_t *in, int8_t *out, int32_t *scratch)
{
    const anynpu_window *w = &p->window;
    const int32_t depth = w->out_channels;
    const int32_t words = p->length >> 1;
    const int32_t row = w->in_width * w->in_channels;
    const int32_t last_y = w->in_height - (w->height - 1) * w->step_y; /* windows from here on leave the image */
    const int32_t last_x = w->in_width - w->width + 1;
    const int32_t count = w->width * w->in_channels;
    const int32_t direct = w->step_x == 1 && count % 4 == 0; /* rows of the image are rows of the patch */
    for (int32_t batch = 0; batch < w->batches; ++batch) {
        int32_t waiting = 0;
        for (int32_t y = 0; y < w->out_height; ++y) {
            const int32_t iy = y * w->stride_y - w->pad_y;
            for (int32_t x = 0; x < w->out_width; ++x) {
                const int32_t ix = x * w->stride_x - w->pad_x;
                int32_t *patch = waiting ? scratch + words : scratch;
                if (direct && iy >= 0 && iy < last_y && ix >= 0 && ix < last_x) {
                    const int8_t *from = in + iy * row + ix * w->in_channels;
                    for (int32_t ky = w->height; ky > 0; --ky, from += w->step_y * row, patch += count >> 1) {
                        widen_dsp_s8(from, patch, count);
                    }
                } else {
                    gather_dsp_s8(p, in, iy, ix, patch);
                }
                if (waiting) {
                    pair_dsp_s8(scratch, scratch + words, p->weights, p->channels, p->length, depth, p->offset, out,
                                out + depth);
                    out += 2 * depth;
                }
                waiting = !waiting;
            }
        }
        if (waiting) {
            pair_dsp_s8(scratch, scratch, p->weights, p->channels, p->length, depth, p->offset, out, out);
            out += depth;
        }
        in += w->in_height * row;
    }
}
