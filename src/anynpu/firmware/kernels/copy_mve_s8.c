/* uses: mve */
/* Writes `count` bytes, rounded up to whole vectors, and returns where the next bytes go. */
static inline int8_t *copy_mve_s8(int8_t *to, const int8_t *from, int32_t count)
{
    int8_t *next = to + count;
    for (int32_t i = (count + 15) >> 4; i > 0; --i, to += 16, from += 16) {
        vstrbq_s8(to, vldrbq_s8(from));
    }
    return next;
}

static inline int8_t *fill_mve_s8(int8_t *to, int8_t value, int32_t count)
{
    int8_t *next = to + count;
    for (int32_t i = (count + 15) >> 4; i > 0; --i, to += 16) {
        vstrbq_s8(to, vdupq_n_s8(value));
    }
    return next;
}
