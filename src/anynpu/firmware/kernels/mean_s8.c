/* uses: advance multiply clamp */
void anynpu_mean_s8(const anynpu_mean_s8_params *p, const int8_t *in, int8_t *out)
{
    int32_t at[ANYNPU_AXES] = {0};
    int32_t base = 0;
    do {
        int32_t inner[ANYNPU_AXES] = {0};
        int32_t place = base;
        int32_t sum = -p->offset;
        do {
            sum += in[place];
        } while (advance(p->reduced_size, p->reduced_stride, inner, &place));
        *out++ = (int8_t)clamp(multiply(sum, p->multiplier, p->shift) + p->out_zero, p->low, p->high);
    } while (advance(p->size, p->stride, at, &base));
}
