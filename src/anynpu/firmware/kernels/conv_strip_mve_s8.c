/* uses: window output_range copy_mve_s8 triple_mve_s8 single_mve_s8 */
/* Copies `rows` pieces of `depth` bytes, `stride` apart. Whole vectors run over into what is written after them. */
static inline int8_t *column_mve_s8(int8_t *to, const int8_t *from, int32_t stride, int32_t depth, int32_t rows)
{
    if (depth <= 16) {
        for (; rows > 0; --rows, from += stride, to += depth) {
            vstrbq_s8(to, vldrbq_s8(from));
        }
        return to;
    }
    for (; rows > 0; --rows, from += stride) {
        to = copy_mve_s8(to, from, depth);
    }
    return to;
}

/* Writes the strip whose first row of the image is `top`. */
__attribute__((noinline)) static void strip_mve_s8(const anynpu_window *w, const int8_t *in, int32_t top, int8_t zero,
                                                   int8_t *strip)
{
    const int32_t depth = w->in_channels;
    const int32_t column = w->height * depth;
    const int32_t stride = w->step_y * w->in_width * depth;
    int32_t above = 0;
    int32_t rows = 0;
    for (int32_t ky = 0, y = top; ky < w->height; ++ky, y += w->step_y) {
        above += y < 0;
        rows += y >= 0 && y < w->in_height;
    }
    const int32_t room = (w->out_width - 1) * w->stride_x + w->width - w->pad_x;
    const int32_t inside = room < w->in_width ? room : w->in_width;
    const int8_t *from = in + (rows > 0 ? (top + above * w->step_y) * w->in_width * depth : 0);
    strip = fill_mve_s8(strip, zero, w->pad_x * column);
    if (rows == w->height) {
        for (int32_t x = inside; x > 0; --x, from += depth) {
            strip = column_mve_s8(strip, from, stride, depth, w->height);
        }
    } else {
        for (int32_t x = inside; x > 0; --x, from += depth) {
            strip = fill_mve_s8(strip, zero, above * depth);
            strip = column_mve_s8(strip, from, stride, depth, rows);
            strip = fill_mve_s8(strip, zero, (w->height - above - rows) * depth);
        }
    }
    fill_mve_s8(strip, zero, (room - inside) * column);
}

void anynpu_conv_strip_mve_s8(const anynpu_conv_strip_mve_s8_params *p, const int8_t *in, int8_t *out, int8_t *scratch)
{
    const anynpu_window *w = &p->window;
    const int32_t depth = w->out_channels;
    const int32_t step = w->stride_x * w->height * w->in_channels;
    for (int32_t batch = 0; batch < w->batches; ++batch) {
        for (int32_t y = 0; y < w->out_height; ++y) {
            const int8_t *x = scratch;
            int32_t left = w->out_width;
            strip_mve_s8(w, in, y * w->stride_y - w->pad_y, p->in_zero, scratch);
            for (; left >= 3; left -= 3, x += 3 * step, out += 3 * depth) {
                triple_mve_s8(x, step, p->weights, p->channels, p->length, depth, p->range, out);
            }
            for (; left > 0; --left, x += step, out += depth) {
                single_mve_s8(x, p->weights, p->channels, p->length, depth, p->range, out);
            }
        }
        in += w->in_height * w->in_width * w->in_channels;
    }
}
