/* uses: advance */
void anynpu_select(const anynpu_select_params *p, const uint8_t *condition, const void *in1, const void *in2, void *out)
{
    uint8_t *to = (uint8_t *)out;
    int32_t at[3][ANYNPU_AXES] = {{0}};
    int32_t place = 0;
    int32_t first = 0;
    int32_t second = 0;
    do {
        const uint8_t *from = condition[place] ? (const uint8_t *)in1 + first : (const uint8_t *)in2 + second;
        memcpy(to, from, (size_t)p->bytes);
        to += p->bytes;
        (void)advance(p->size, p->stride1, at[1], &first);
        (void)advance(p->size, p->stride2, at[2], &second);
    } while (advance(p->size, p->stride, at[0], &place));
}
