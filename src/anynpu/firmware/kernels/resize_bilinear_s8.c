/* uses: between */
void anynpu_resize_bilinear_s8(const anynpu_resize_bilinear_s8_params *p, const int8_t *in, int8_t *out)
{
    const int32_t row_size = p->in_width * p->depth;
    for (int32_t batch = 0; batch < p->batches; ++batch, in += p->in_height * row_size) {
        for (int32_t y = 0; y < p->out_height; ++y) {
            const anynpu_between *v = p->rows + y;
            for (int32_t x = 0; x < p->out_width; ++x) {
                const anynpu_between *h = p->columns + x;
                const int8_t *upper_left = in + v->lower * row_size + h->lower * p->depth;
                const int8_t *lower_left = in + v->upper * row_size + h->lower * p->depth;
                const int32_t right = (h->upper - h->lower) * p->depth;
                for (int32_t c = 0; c < p->depth; ++c) {
                    const int32_t top = upper_left[c] * (1024 - h->weight) + upper_left[c + right] * h->weight;
                    const int32_t bottom = lower_left[c] * (1024 - h->weight) + lower_left[c + right] * h->weight;
                    const int32_t sum = top * (1024 - v->weight) + bottom * v->weight;
                    *out++ = (int8_t)((sum + (sum > 0 ? 1 << 19 : -(1 << 19))) / (1 << 20));
                }
            }
        }
    }
}
