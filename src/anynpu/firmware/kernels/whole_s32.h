/* Sums ('+'), differences ('-'), products ('*') and quotients ('/') of whole numbers, the smaller ('<') or larger ('>') of
 * two. */
typedef struct {
    anynpu_pair_shape shape;
    int32_t kind;
    int32_t low;
    int32_t high;
} anynpu_whole_s32_params;

void anynpu_whole_s32(const anynpu_whole_s32_params *p, const int32_t *in1, const int32_t *in2, int32_t *out);
