/* uses: window wide_channel multiply multiply_wide clamp */
/* The sum of one row of taps that lie inside the image; the part sums of a row fit 32 bits in `dot_s16`'s steps. */
static int64_t dot_s16(const int16_t *value, const int8_t *weight, int32_t length)
{
    int64_t sum = 0;
    while (length > 0) {
        const int32_t step = length < 256 ? length : 256; /* 256 * 2^15 * 2^7 stays below 2^31 */
        int32_t part = 0;
        for (int32_t i = 0; i < step - 1; i += 2) {
            part += value[i] * weight[i] + value[i + 1] * weight[i + 1];
        }
        if (step & 1) {
            part += value[step - 1] * weight[step - 1];
        }
        sum += part;
        value += step;
        weight += step;
        length -= step;
    }
    return sum;
}

static int64_t window_sum_s16(const anynpu_conv_s16_params *p, const int16_t *in, int32_t y, int32_t x, int32_t channel)
{
    const anynpu_window *w = &p->window;
    const int32_t depth = w->in_channels / p->groups;
    const int32_t group = channel / (w->out_channels / p->groups);
    const int8_t *weight = p->weights + channel * w->height * w->width * depth;
    const int32_t whole = p->groups == 1 && w->step_x == 1 && x >= 0 && x + w->width <= w->in_width;
    int64_t sum = 0;
    for (int32_t ky = 0; ky < w->height; ++ky, y += w->step_y, weight += w->width * depth) {
        if (y < 0 || y >= w->in_height) {
            continue;
        }
        const int16_t *row = in + y * w->in_width * w->in_channels + group * depth;
        if (whole) {
            sum += dot_s16(row + x * depth, weight, w->width * depth);
            continue;
        }
        for (int32_t kx = 0; kx < w->width; ++kx) {
            const int32_t ix = x + kx * w->step_x;
            if (ix >= 0 && ix < w->in_width) {
                sum += dot_s16(row + ix * w->in_channels, weight + kx * depth, depth);
            }
        }
    }
    return sum;
}

void anynpu_conv_s16(const anynpu_conv_s16_params *p, const int16_t *in, int16_t *out)
{
    const anynpu_window *w = &p->window;
    for (int32_t batch = 0; batch < w->batches; ++batch) {
        for (int32_t y = 0; y < w->out_height; ++y) {
            for (int32_t x = 0; x < w->out_width; ++x) {
                for (int32_t c = 0; c < w->out_channels; ++c) {
                    const anynpu_wide_channel *channel = p->channels + c;
                    const int64_t sum =
                        channel->bias + window_sum_s16(p, in, y * w->stride_y - w->pad_y, x * w->stride_x - w->pad_x, c);
                    const int32_t value = p->narrow ? multiply((int32_t)sum, channel->multiplier, channel->shift)
                                                    : multiply_wide(sum, channel->multiplier, channel->shift);
                    *out++ = (int16_t)clamp(value, p->low, p->high);
                }
            }
        }
        in += w->in_height * w->in_width * w->in_channels;
    }
}
