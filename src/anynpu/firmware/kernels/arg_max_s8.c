void anynpu_arg_max_s8(const anynpu_arg_max_s8_params *p, const int8_t *in, int32_t *out)
{
    for (int32_t outer = 0; outer < p->outer; ++outer, in += p->axis * p->inner) {
        for (int32_t i = 0; i < p->inner; ++i) {
            int32_t best = 0;
            for (int32_t a = 1; a < p->axis; ++a) {
                if (p->sign * in[a * p->inner + i] > p->sign * in[best * p->inner + i]) {
                    best = a;
                }
            }
            *out++ = best;
        }
    }
}
