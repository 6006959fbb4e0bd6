/* uses: window output_range copy_mve_s8 requantize_mve */
/* The products of eight channels at one tap; then on to the next tap. Two of them fit 16 bits: no weight is -128. */
static inline int16x8_t tap_mve(const int8_t **x, int32_t step, const int8_t **w)
{
    const int16x8_t weights = vldrbq_s16(*w);
    const int16x8_t values = vldrbq_s16(*x);
    *w += 8;
    *x += step;
    IN_ORDER(*w);
    IN_ORDER(*x);
    return vmulq_s16(values, weights);
}

/* A row of pixels, 3x3 taps. The second row of taps begins `to_second` behind the first, the third `to_third` behind
   that. */
static inline void depthwise_3x3_mve_s8(const anynpu_depthwise_mve_s8_params *p, const int8_t *line, int32_t to_second,
                                        int32_t to_third, int32_t relu, int8_t *out)
{
    const int32_t depth = p->window.in_channels;
    const int32_t column = p->window.step_x * depth;
    const int32_t to_next = p->window.stride_x * depth - to_second - to_third - 2 * column;
    const anynpu_output_range range = p->range;
    const int8_t *w = p->weights;
    const int32_t *channels = p->channels;
    to_second -= 2 * column;
    to_third -= 2 * column;
    for (int32_t left = depth; left > 0; left -= 8, line += 8, out += 8, w += 72, channels += 24) {
        const int8_t *x = line;
        int8_t *to = out;
        int32_t count = p->window.out_width;
        do {
            int16x8_t sum = tap_mve(&x, column, &w);
            sum = vaddq_s16(sum, tap_mve(&x, column, &w));
            int32x4_t even = vmovlbq_s16(sum);
            int32x4_t odd = vmovltq_s16(sum);
            SETTLED(even, odd);
            sum = tap_mve(&x, to_second, &w);
            sum = vaddq_s16(sum, tap_mve(&x, column, &w));
            even = vaddq_s32(even, vmovlbq_s16(sum));
            odd = vaddq_s32(odd, vmovltq_s16(sum));
            SETTLED(even, odd);
            sum = tap_mve(&x, column, &w);
            sum = vaddq_s16(sum, tap_mve(&x, to_third, &w));
            even = vaddq_s32(even, vmovlbq_s16(sum));
            odd = vaddq_s32(odd, vmovltq_s16(sum));
            SETTLED(even, odd);
            sum = tap_mve(&x, column, &w);
            sum = vaddq_s16(sum, tap_mve(&x, column, &w));
            even = vaddq_s32(even, vmovlbq_s16(sum));
            odd = vaddq_s32(odd, vmovltq_s16(sum));
            SETTLED(even, odd);
            sum = tap_mve(&x, to_next, &w);
            even = vaddq_s32(even, vmovlbq_s16(sum));
            odd = vaddq_s32(odd, vmovltq_s16(sum));
            w -= 72;
            even = scale_mve(even, load_channels(channels), relu);
            odd = scale_mve(odd, load_channels(channels + 12), relu);
            store_eight(to, outputs_mve(even, odd, range, relu), left);
            to += depth;
        } while (--count != 0);
    }
}

__attribute__((noinline)) static void depthwise_3x3_any_mve_s8(const anynpu_depthwise_mve_s8_params *p,
                                                               const int8_t *line, int32_t to_second, int32_t to_third,
                                                               int8_t *out)
{
    depthwise_3x3_mve_s8(p, line, to_second, to_third, 0, out);
}

__attribute__((noinline)) static void depthwise_3x3_relu_mve_s8(const anynpu_depthwise_mve_s8_params *p,
                                                                    const int8_t *line, int32_t to_second,
                                                                    int32_t to_third, int8_t *out)
{
    depthwise_3x3_mve_s8(p, line, to_second, to_third, 1, out);
}

/* A row of pixels under any window; `first` is the line of its first row. */
static void depthwise_any_mve_s8(const anynpu_depthwise_mve_s8_params *p, const int8_t *lines, int32_t first, int8_t *out)
{
    const anynpu_window *w = &p->window;
    const int32_t depth = w->in_channels;
    const int32_t column = w->step_x * depth;
    for (int32_t pixel = 0; pixel < w->out_width; ++pixel, lines += w->stride_x * depth) {
        const int32_t *channels = p->channels;
        const int8_t *v = p->weights;
        for (int32_t c = 0; c < depth; c += 8, channels += 24) {
            int32x4_t even = vdupq_n_s32(0);
            int32x4_t odd = even;
            int32_t line = first;
            for (int32_t ky = w->height; ky > 0; --ky) {
                const int8_t *tap = lines + line * p->line + c;
                line += w->step_y;
                line -= line >= p->lines ? p->lines : 0;
                int32_t kx = w->width;
                for (; kx > 1; kx -= 2) {
                    int16x8_t sum = tap_mve(&tap, column, &v);
                    sum = vaddq_s16(sum, tap_mve(&tap, column, &v));
                    even = vaddq_s32(even, vmovlbq_s16(sum));
                    odd = vaddq_s32(odd, vmovltq_s16(sum));
                }
                if (kx > 0) {
                    const int16x8_t sum = tap_mve(&tap, column, &v);
                    even = vaddq_s32(even, vmovlbq_s16(sum));
                    odd = vaddq_s32(odd, vmovltq_s16(sum));
                }
            }
            even = scale_mve(even, load_channels(channels), 0);
            odd = scale_mve(odd, load_channels(channels + 12), 0);
            store_eight(out + c, outputs_mve(even, odd, p->range, 0), depth - c);
        }
        out += depth;
    }
}

/* One row of the image as a line: its border, its pixels, its border. */
static void depthwise_line_mve_s8(const anynpu_depthwise_mve_s8_params *p, const int8_t *in, int32_t y, int8_t *line)
{
    const anynpu_window *w = &p->window;
    const int32_t depth = w->in_channels;
    const int32_t columns = (w->out_width - 1) * w->stride_x + (w->width - 1) * w->step_x + 1;
    const int32_t room = columns - w->pad_x;
    const int32_t inside = y < 0 || y >= w->in_height ? 0 : room < w->in_width ? room : w->in_width;
    line = fill_mve_s8(line, p->in_zero, (inside > 0 ? w->pad_x : columns) * depth);
    if (inside > 0) {
        line = copy_mve_s8(line, in + y * w->in_width * depth, inside * depth);
        fill_mve_s8(line, p->in_zero, (room - inside) * depth);
    }
}

void anynpu_depthwise_mve_s8(const anynpu_depthwise_mve_s8_params *p, const int8_t *in, int8_t *out, int8_t *scratch)
{
    const anynpu_window *w = &p->window;
    const int32_t depth = w->in_channels;
    for (int32_t batch = 0; batch < w->batches; ++batch) {
        int32_t next = -w->pad_y; /* the first row that is not in a line yet */
        for (int32_t y = 0; y < w->out_height; ++y) {
            const int32_t top = y * w->stride_y - w->pad_y;
            const int32_t end = top + (w->height - 1) * w->step_y + 1;
            for (next = next < top ? top : next; next < end; ++next) {
                depthwise_line_mve_s8(p, in, next, scratch + (next + w->pad_y) % p->lines * p->line);
            }
            const int32_t first = (top + w->pad_y) % p->lines;
            const int32_t second = first + w->step_y < p->lines ? first + w->step_y : first + w->step_y - p->lines;
            const int32_t third = second + w->step_y < p->lines ? second + w->step_y : second + w->step_y - p->lines;
            if (w->height == 3 && w->width == 3) {
                const int8_t *line = scratch + first * p->line;
                const int32_t to_second = (second - first) * p->line;
                const int32_t to_third = (third - second) * p->line;
                if (plain_relu(p->range)) {
                    depthwise_3x3_relu_mve_s8(p, line, to_second, to_third, out);
                } else {
                    depthwise_3x3_any_mve_s8(p, line, to_second, to_third, out);
                }
            } else {
                depthwise_any_mve_s8(p, scratch, first, out);
            }
            out += w->out_width * depth;
        }
        in += w->in_height * w->in_width * depth;
    }
}
