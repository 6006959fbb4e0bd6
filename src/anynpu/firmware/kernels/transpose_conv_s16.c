/* uses: window wide_channel multiply_wide clamp */
static int64_t gathered_sum_s16(const anynpu_transpose_conv_s16_params *p, const int16_t *in, int32_t y, int32_t x,
                                int32_t channel)
{
    const anynpu_window *w = &p->window;
    const int32_t depth = w->in_channels;
    const int8_t *weight = p->weights + channel * w->height * w->width * depth;
    int64_t sum = 0;
    for (int32_t ky = 0; ky < w->height; ++ky) {
        for (int32_t kx = 0; kx < w->width; ++kx, weight += depth) {
            const int32_t ty = y - ky;
            const int32_t tx = x - kx;
            if (ty < 0 || tx < 0 || ty % w->stride_y != 0 || tx % w->stride_x != 0) {
                continue;
            }
            const int32_t iy = ty / w->stride_y;
            const int32_t ix = tx / w->stride_x;
            if (iy < w->in_height && ix < w->in_width) {
                const int16_t *value = in + (iy * w->in_width + ix) * depth;
                for (int32_t c = 0; c < depth; ++c) {
                    sum += value[c] * weight[c];
                }
            }
        }
    }
    return sum;
}

void anynpu_transpose_conv_s16(const anynpu_transpose_conv_s16_params *p, const int16_t *in, int16_t *out)
{
    const anynpu_window *w = &p->window;
    for (int32_t batch = 0; batch < w->batches; ++batch) {
        for (int32_t y = 0; y < w->out_height; ++y) {
            for (int32_t x = 0; x < w->out_width; ++x) {
                for (int32_t c = 0; c < w->out_channels; ++c) {
                    const anynpu_wide_channel *channel = p->channels + c;
                    const int64_t sum = channel->bias + gathered_sum_s16(p, in, y + w->pad_y, x + w->pad_x, c);
                    *out++ = (int16_t)clamp(multiply_wide(sum, channel->multiplier, channel->shift), p->low, p->high);
                }
            }
        }
        in += w->in_height * w->in_width * w->in_channels;
    }
}
