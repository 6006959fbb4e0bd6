/* uses: channel requantize clamp */
void anynpu_dense_s8(const anynpu_dense_s8_params *p, const int8_t *in, int8_t *out)
{
    const int32_t length = p->length;
    const anynpu_channel *channel = p->channels;
    const int8_t *w0 = p->weights;
    int32_t left = p->out_channels;
    for (; left > 3; left -= 4, channel += 4, out += 4) {
        const int8_t *w1 = w0 + length;
        const int8_t *w2 = w1 + length;
        const int8_t *w3 = w2 + length;
        const int8_t *x = in;
        int32_t a0 = channel[0].bias;
        int32_t a1 = channel[1].bias;
        int32_t a2 = channel[2].bias;
        int32_t a3 = channel[3].bias;
        for (int32_t i = length >> 2; i > 0; --i) {
            for (int32_t j = 0; j < 4; ++j) {
                const int32_t value = x[j];
                a0 += value * w0[j];
                a1 += value * w1[j];
                a2 += value * w2[j];
                a3 += value * w3[j];
            }
            x += 4;
            w0 += 4;
            w1 += 4;
            w2 += 4;
            w3 += 4;
        }
        for (int32_t i = length & 3; i > 0; --i) {
            const int32_t value = *x++;
            a0 += value * *w0++;
            a1 += value * *w1++;
            a2 += value * *w2++;
            a3 += value * *w3++;
        }
        w0 = w3;
        out[0] = (int8_t)clamp(requantize(a0, channel, p->zero2), p->low, p->high);
        out[1] = (int8_t)clamp(requantize(a1, channel + 1, p->zero2), p->low, p->high);
        out[2] = (int8_t)clamp(requantize(a2, channel + 2, p->zero2), p->low, p->high);
        out[3] = (int8_t)clamp(requantize(a3, channel + 3, p->zero2), p->low, p->high);
    }
    for (; left > 0; --left, ++channel, ++out, w0 += length) {
        int32_t a = channel->bias;
        for (int32_t i = 0; i < length; ++i) {
            a += in[i] * w0[i];
        }
        *out = (int8_t)clamp(requantize(a, channel, p->zero2), p->low, p->high);
    }
}
