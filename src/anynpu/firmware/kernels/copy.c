void anynpu_copy(const anynpu_copy_params *p, const void *in, void *out)
{
    const uint8_t *from = (const uint8_t *)in + p->from_offset;
    uint8_t *to = (uint8_t *)out + p->to_offset;
    int32_t at[ANYNPU_AXES - 1] = {0};
    const int32_t last = ANYNPU_AXES - 1;
    int32_t axis;
    do {
        for (int32_t i = 0; i < p->size[last]; ++i) {
            memcpy(to + i * p->to[last], from + i * p->from[last], (size_t)p->bytes);
        }
        for (axis = last - 1; axis >= 0; --axis) {
            from += p->from[axis];
            to += p->to[axis];
            if (++at[axis] < p->size[axis]) {
                break;
            }
            from -= p->from[axis] * p->size[axis];
            to -= p->to[axis] * p->size[axis];
            at[axis] = 0;
        }
    } while (axis >= 0);
}
