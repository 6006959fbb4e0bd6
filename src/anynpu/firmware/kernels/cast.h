/* Truth values ('b') and whole numbers ('i', 's' of 16 bits) as truth values, whole or real numbers ('f'). */
typedef struct {
    int32_t count;
    int32_t from;
    int32_t to;
} anynpu_cast_params;

void anynpu_cast(const anynpu_cast_params *p, const void *in, void *out);
