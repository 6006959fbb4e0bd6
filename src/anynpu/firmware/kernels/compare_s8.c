/* uses: pair_shape */
/* loop: each_pair_s8 holds_s8 */
static inline int8_t holds_s8(const anynpu_compare_s8_params *p, int32_t a, int32_t b)
{
    return (int8_t)(a < b ? p->below : a > b ? p->above : p->same);
}
