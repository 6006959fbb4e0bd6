/* uses: channel requantize */
void anynpu_dense_s8(const anynpu_dense_s8_params *p, const int8_t *in, int8_t *out)
{
    const int32_t length = p->length;
    const int32_t offset = p->offset;
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
        for (int32_t i = length >> 3; i > 0; --i) {
            for (int32_t j = 0; j < 8; ++j) {
                const int32_t value = x[j];
                a0 += value * w0[j];
                a1 += value * w1[j];
                a2 += value * w2[j];
                a3 += value * w3[j];
            }
            x += 8;
            w0 += 8;
            w1 += 8;
            w2 += 8;
            w3 += 8;
        }
        for (int32_t i = length & 7; i > 0; --i) {
            const int32_t value = *x++;
            a0 += value * *w0++;
            a1 += value * *w1++;
            a2 += value * *w2++;
            a3 += value * *w3++;
        }
        w0 = w3;
        out[0] = requantize(a0, channel, offset);
        out[1] = requantize(a1, channel + 1, offset);
        out[2] = requantize(a2, channel + 2, offset);
        out[3] = requantize(a3, channel + 3, offset);
    }
    for (; left > 0; --left, ++channel, ++out, w0 += length) {
        int32_t a = channel->bias;
        for (int32_t i = 0; i < length; ++i) {
            a += in[i] * w0[i];
        }
        *out = requantize(a, channel, offset);
    }
}
