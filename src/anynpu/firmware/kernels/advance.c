/* Moves `offset` to the next position of a strided box; the counters `at` start at zero. Returns 0 after the last. */
static inline int32_t advance(const int32_t *size, const int32_t *stride, int32_t *at, int32_t *offset)
{
    for (int32_t axis = ANYNPU_AXES - 1; axis >= 0; --axis) {
        *offset += stride[axis];
        if (++at[axis] < size[axis]) {
            return 1;
        }
        *offset -= stride[axis] * size[axis];
        at[axis] = 0;
    }
    return 0;
}
