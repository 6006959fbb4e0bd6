/* uses: advance */
void anynpu_reduce_max_s8(const anynpu_reduce_max_s8_params *p, const int8_t *in, int8_t *out)
{
    int32_t at[ANYNPU_AXES] = {0};
    int32_t base = 0;
    do {
        int32_t inner[ANYNPU_AXES] = {0};
        int32_t place = base;
        int8_t best = INT8_MIN;
        do {
            best = in[place] > best ? in[place] : best;
        } while (advance(p->reduced_size, p->reduced_stride, inner, &place));
        *out++ = best;
    } while (advance(p->size, p->stride, at, &base));
}
