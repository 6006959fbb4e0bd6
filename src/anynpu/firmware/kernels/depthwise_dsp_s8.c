/* uses: window unpack_dsp_s8 requantize_dsp gather_s8 */
/* The sums of four channels. */
typedef struct {
    int32_t a0;
    int32_t a1;
    int32_t a2;
    int32_t a3;
} four_sums_dsp;

/* Adds the products of four channels at one tap; the weights are pairs of 16 bits, in the order of unpack_dsp_s8. */
static inline void add_tap_dsp(four_sums_dsp *s, const int8_t *x, const int32_t *w)
{
    const four_dsp pairs = unpack_dsp_s8(x);
    s->a0 = __smlabb(pairs.even, w[0], s->a0);
    s->a2 = __smlatt(pairs.even, w[0], s->a2);
    s->a1 = __smlabb(pairs.odd, w[1], s->a1);
    s->a3 = __smlatt(pairs.odd, w[1], s->a3);
}

/* Up to four outputs, `left` of them. */
static inline void four_outputs_dsp(const four_sums_dsp *s, const anynpu_channel *channel, int32_t offset, int32_t left,
                                    int8_t *out)
{
    out[0] = requantize_dsp(s->a0 + channel[0].bias, channel, offset);
    if (left > 1) {
        out[1] = requantize_dsp(s->a1 + channel[1].bias, channel + 1, offset);
    }
    if (left > 2) {
        out[2] = requantize_dsp(s->a2 + channel[2].bias, channel + 2, offset);
    }
    if (left > 3) {
        out[3] = requantize_dsp(s->a3 + channel[3].bias, channel + 3, offset);
    }
}

/* One output pixel of a window three wide; `row` and `column` are the distances between taps in `in`. A last block may
   have fewer than four channels: what it reads behind them meets weights of zero. */
__attribute__((noinline)) static void depthwise_three_dsp_s8(const anynpu_depthwise_dsp_s8_params *p, const int8_t *in,
                                                             int32_t row, int32_t column, int8_t *out)
{
    const int32_t height = p->window.height;
    const int32_t offset = p->offset;
    const anynpu_channel *channel = p->channels;
    const int32_t *w = p->weights;
    for (int32_t left = p->window.in_channels; left > 0; left -= 4, channel += 4, in += 4, out += 4) {
        four_sums_dsp s = {0, 0, 0, 0};
        const int8_t *x = in;
        for (int32_t ky = height; ky > 0; --ky, x += row, w += 6) {
            add_tap_dsp(&s, x, w);
            add_tap_dsp(&s, x + column, w + 2);
            add_tap_dsp(&s, x + 2 * column, w + 4);
        }
        if (left > 3) {
            four_outputs_dsp(&s, channel, offset, 4, out);
        } else {
            four_outputs_dsp(&s, channel, offset, left, out);
        }
    }
}

/* The same of any window. */
__attribute__((noinline)) static void depthwise_any_dsp_s8(const anynpu_depthwise_dsp_s8_params *p, const int8_t *in,
                                                           int32_t row, int32_t column, int8_t *out)
{
    const int32_t width = p->window.width;
    const int32_t height = p->window.height;
    const int32_t next_row = row - width * column;
    const anynpu_channel *channel = p->channels;
    const int32_t *w = p->weights;
    for (int32_t left = p->window.in_channels; left > 0; left -= 4, channel += 4, in += 4, out += 4) {
        four_sums_dsp s = {0, 0, 0, 0};
        const int8_t *x = in;
        for (int32_t ky = height; ky > 0; --ky, x += next_row) {
            for (int32_t kx = width; kx > 0; --kx, x += column, w += 2) {
                add_tap_dsp(&s, x, w);
            }
        }
        four_outputs_dsp(&s, channel, p->offset, left, out);
    }
}

static inline void depthwise_pixel_dsp_s8(const anynpu_depthwise_dsp_s8_params *p, const int8_t *in, int32_t row,
                                          int32_t column, int8_t *out)
{
    if (p->window.width == 3) {
        depthwise_three_dsp_s8(p, in, row, column, out);
    } else {
        depthwise_any_dsp_s8(p, in, row, column, out);
    }
}

void anynpu_depthwise_dsp_s8(const anynpu_depthwise_dsp_s8_params *p, const int8_t *in, int8_t *out, int8_t *scratch)
{
    const anynpu_window *w = &p->window;
    const int32_t depth = w->in_channels;
    const int32_t span_y = (w->height - 1) * w->step_y;
    const int32_t span_x = (w->width - 1) * w->step_x;
    for (int32_t batch = 0; batch < w->batches; ++batch) {
        for (int32_t y = 0; y < w->out_height; ++y) {
            const int32_t iy = y * w->stride_y - w->pad_y;
            for (int32_t x = 0; x < w->out_width; ++x, out += depth) {
                const int32_t ix = x * w->stride_x - w->pad_x;
                if (iy >= 0 && ix >= 0 && iy + span_y < w->in_height && ix + span_x < w->in_width) {
                    depthwise_pixel_dsp_s8(p, in + (iy * w->in_width + ix) * depth, w->step_y * w->in_width * depth,
                                           w->step_x * depth, out);
                } else {
                    gather_s8(w, in, iy, ix, p->in_zero, scratch);
                    depthwise_pixel_dsp_s8(p, scratch, w->width * depth, depth, out);
                }
            }
        }
        in += w->in_height * w->in_width * depth;
    }
}
