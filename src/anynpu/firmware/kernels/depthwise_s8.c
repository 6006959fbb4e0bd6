/* uses: window channel gather_s8 requantize */
/* One output pixel; `row` and `column` are the distances between taps in `in`. */
static void depthwise_pixel_s8(const anynpu_depthwise_s8_params *p, const int8_t *in, int32_t row, int32_t column,
                               int8_t *out)
{
    const int32_t width = p->window.width;
    const int32_t height = p->window.height;
    const int32_t next_row = row - width * column;
    const int32_t offset = p->offset;
    const anynpu_channel *channel = p->channels;
    const int8_t *w = p->weights;
    int32_t left = p->window.in_channels;
    for (; left > 3; left -= 4, channel += 4, in += 4, out += 4) {
        int32_t a0 = channel[0].bias;
        int32_t a1 = channel[1].bias;
        int32_t a2 = channel[2].bias;
        int32_t a3 = channel[3].bias;
        const int8_t *x = in;
        if (width == 3) {
            for (int32_t ky = height; ky > 0; --ky, x += row, w += 12) {
                const int8_t *y = x + column;
                const int8_t *z = y + column;
                a0 += x[0] * w[0] + y[0] * w[4] + z[0] * w[8];
                a1 += x[1] * w[1] + y[1] * w[5] + z[1] * w[9];
                a2 += x[2] * w[2] + y[2] * w[6] + z[2] * w[10];
                a3 += x[3] * w[3] + y[3] * w[7] + z[3] * w[11];
            }
        } else {
            for (int32_t ky = height; ky > 0; --ky, x += next_row) {
                for (int32_t kx = width; kx > 0; --kx, x += column, w += 4) {
                    a0 += x[0] * w[0];
                    a1 += x[1] * w[1];
                    a2 += x[2] * w[2];
                    a3 += x[3] * w[3];
                }
            }
        }
        out[0] = requantize(a0, channel, offset);
        out[1] = requantize(a1, channel + 1, offset);
        out[2] = requantize(a2, channel + 2, offset);
        out[3] = requantize(a3, channel + 3, offset);
    }
    for (; left > 0; --left, ++channel, ++in, ++out) {
        int32_t a = channel->bias;
        const int8_t *x = in;
        for (int32_t ky = height; ky > 0; --ky, x += next_row) {
            for (int32_t kx = width; kx > 0; --kx, x += column) {
                a += *x * *w++;
            }
        }
        *out = requantize(a, channel, offset);
    }
}

void anynpu_depthwise_s8(const anynpu_depthwise_s8_params *p, const int8_t *in, int8_t *out, int8_t *scratch)
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
                    depthwise_pixel_s8(p, in + (iy * w->in_width + ix) * depth, w->step_y * w->in_width * depth,
                                       w->step_x * depth, out);
                } else {
                    gather_s8(w, in, iy, ix, p->in_zero, scratch);
                    depthwise_pixel_s8(p, scratch, w->width * depth, depth, out);
                }
            }
        }
        in += w->in_height * w->in_width * depth;
    }
}
