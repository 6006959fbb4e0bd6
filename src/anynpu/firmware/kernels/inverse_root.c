/* uses: high_product saturate_left divide_power leading_zeros */
/* 1 / sqrt(value) as a multiplier and a shift, by five steps of Newton's method with three integer bits. */
static int32_t inverse_root(int32_t value, int32_t *shift)
{
    if (value <= 1) {
        *shift = 0;
        return INT32_MAX;
    }
    const int32_t pairs = (leading_zeros((uint32_t)value) - 1) / 2 - 1;
    const int32_t halved = divide_power((value * (1 << (2 * pairs))) >> 1, 1);
    int32_t x = 1 << 28;
    for (int32_t i = 0; i < 5; ++i) {
        const int32_t cube = saturate_left(high_product(high_product(x, x), x), 6);
        x = saturate_left(high_product((1 << 28) + (1 << 27), x) - high_product(halved, cube), 3);
    }
    const int32_t root = high_product(x, 1518500250);
    *shift = pairs < 11 ? pairs - 11 : 0;
    return pairs > 11 ? (int32_t)((uint32_t)root << (pairs - 11)) : root;
}
