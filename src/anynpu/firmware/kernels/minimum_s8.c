/* uses: pair_shape */
/* loop: each_pair_s8 smaller_s8 */
static inline int8_t smaller_s8(const anynpu_minimum_s8_params *p, int32_t a, int32_t b)
{
    (void)p;
    return (int8_t)(a < b ? a : b);
}
