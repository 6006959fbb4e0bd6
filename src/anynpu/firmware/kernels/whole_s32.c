/* uses: pair_shape advance clamp */
/* loop: each_pair result_s32 */
typedef int32_t whole_s32_operand;
typedef int32_t whole_s32_result;

static inline int32_t result_s32(const anynpu_whole_s32_params *p, int32_t a, int32_t b)
{
    const uint32_t x = (uint32_t)a; /* what does not fit wraps around */
    const uint32_t y = (uint32_t)b;
    switch (p->kind) {
    case '<':
        return a < b ? a : b;
    case '>':
        return a > b ? a : b;
    case '*':
        return clamp((int32_t)(x * y), p->low, p->high);
    case '/': /* towards zero, by numbers that are not zero */
        return clamp(b == -1 ? (int32_t)(0u - x) : a / b, p->low, p->high);
    case '-':
        return clamp((int32_t)(x - y), p->low, p->high);
    default:
        return clamp((int32_t)(x + y), p->low, p->high);
    }
}
