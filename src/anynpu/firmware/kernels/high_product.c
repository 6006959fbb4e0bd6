/* The product of two Q0.31 numbers, rounded. */
static inline int32_t high_product(int32_t a, int32_t b)
{
    return (int32_t)(((int64_t)a * b + ((int64_t)1 << 30)) >> 31);
}
