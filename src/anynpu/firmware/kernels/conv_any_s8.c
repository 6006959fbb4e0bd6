/* uses: window channel multiply clamp */
static int32_t window_sum_s8(const anynpu_conv_any_s8_params *p, const int8_t *in, int32_t y, int32_t x, int32_t channel)
{
    const anynpu_window *w = &p->window;
    const int32_t depth = w->in_channels / p->groups;
    const int32_t group = channel / (w->out_channels / p->groups);
    const int8_t *weight = p->weights + channel * w->height * w->width * depth;
    int32_t sum = 0;
    for (int32_t ky = 0; ky < w->height; ++ky) {
        for (int32_t kx = 0; kx < w->width; ++kx, weight += depth) {
            const int32_t iy = y + ky * w->step_y;
            const int32_t ix = x + kx * w->step_x;
            if (iy < 0 || iy >= w->in_height || ix < 0 || ix >= w->in_width) {
                continue;
            }
            const int8_t *value = in + (iy * w->in_width + ix) * w->in_channels + group * depth;
            for (int32_t c = 0; c < depth; ++c) {
                sum += (value[c] - p->in_zero) * weight[c];
            }
        }
    }
    return sum;
}

void anynpu_conv_any_s8(const anynpu_conv_any_s8_params *p, const int8_t *in, int8_t *out)
{
    const anynpu_window *w = &p->window;
    for (int32_t batch = 0; batch < w->batches; ++batch) {
        for (int32_t y = 0; y < w->out_height; ++y) {
            for (int32_t x = 0; x < w->out_width; ++x) {
                for (int32_t c = 0; c < w->out_channels; ++c) {
                    const anynpu_channel *channel = p->channels + c;
                    const int32_t sum =
                        channel->bias + window_sum_s8(p, in, y * w->stride_y - w->pad_y, x * w->stride_x - w->pad_x, c);
                    *out++ = (int8_t)clamp(multiply(sum, channel->multiplier, channel->shift) + p->out_zero, p->low,
                                           p->high);
                }
            }
        }
        in += w->in_height * w->in_width * w->in_channels;
    }
}
