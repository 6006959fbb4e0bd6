void anynpu_cast(const anynpu_cast_params *p, const void *in, void *out)
{
    for (int32_t i = 0; i < p->count; ++i) {
        const int32_t value = p->from == 'b'   ? ((const uint8_t *)in)[i]
                              : p->from == 's' ? ((const int16_t *)in)[i]
                                               : ((const int32_t *)in)[i];
        if (p->to == 'f') {
            ((float *)out)[i] = (float)value;
        } else if (p->to == 'b') {
            ((uint8_t *)out)[i] = value != 0;
        } else if (p->to == 's') {
            ((int16_t *)out)[i] = (int16_t)value;
        } else {
            ((int32_t *)out)[i] = value;
        }
    }
}
