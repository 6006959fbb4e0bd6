/* uses: pair_shape */
/* loop: each_pair_s8 larger_s8 */
static inline int8_t larger_s8(const anynpu_maximum_s8_params *p, int32_t a, int32_t b)
{
    (void)p;
    return (int8_t)(a > b ? a : b);
}
