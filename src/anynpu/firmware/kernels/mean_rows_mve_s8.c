/* uses: mve output_range multiply clamp */
void anynpu_mean_rows_mve_s8(const anynpu_mean_rows_mve_s8_params *p, const int8_t *in, int8_t *out)
{
    const anynpu_output_range range = p->range;
    for (int32_t row = p->rows; row > 0; --row, in += p->count) {
        const int8_t *x = in;
        int32_t sum = -p->offset;
        int32_t left = p->count;
        for (; left > 15; left -= 16, x += 16) {
            sum = vaddvaq_s8(sum, vldrbq_s8(x));
        }
        if (left > 0) {
            sum = vaddvaq_s8(sum, vldrbq_z_s8(x, vctp8q((uint32_t)left)));
        }
        *out++ = (int8_t)clamp(multiply(sum, p->multiplier, p->shift) + range.zero, range.low, range.high);
    }
}
