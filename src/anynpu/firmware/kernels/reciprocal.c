/* uses: high_product saturate_left */
/* 1 / (1 + x) for x in Q0.31, by three steps of Newton's method in Q2.29. */
static int32_t reciprocal(int32_t x)
{
    const int32_t half = (int32_t)(((int64_t)x + INT32_MAX + 1) / 2);
    int32_t estimate = 1515870810 + high_product(half, -1010580540);
    for (int32_t i = 0; i < 3; ++i) {
        const int32_t rest = (1 << 29) - high_product(half, estimate);
        estimate += saturate_left(high_product(estimate, rest), 2);
    }
    return saturate_left(estimate, 1);
}
