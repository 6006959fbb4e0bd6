/* The vector instructions of Arm's M-profile (Helium). Another processor gets the same results from the functions below:
   they check this code on a computer and are not meant to be fast. */
#if defined(__ARM_FEATURE_MVE)

#include <arm_mve.h>

/* Compilers move loads and sums ahead of their use until they run out of registers: these keep what is before them
   before what follows, without an instruction. */
#define IN_ORDER(pointer) __asm__ volatile("" : "+r"(pointer) : : "memory")
#define SETTLED(a, b) __asm__ volatile("" : "+w"(a), "+w"(b))

#elif defined(__arm__)

#error "generated for a core with Helium (MVE): build the model with -O kernels=plain or kernels=dsp for this core"

#else

#define IN_ORDER(pointer) (void)(pointer)
#define SETTLED(a, b) (void)(a), (void)(b)

typedef struct {
    int8_t lane[16];
} int8x16_t;

typedef struct {
    int16_t lane[8];
} int16x8_t;

typedef struct {
    int32_t lane[4];
} int32x4_t;

typedef struct {
    uint8_t lane[16];
} uint8x16_t;

typedef struct {
    uint32_t lane[4];
} uint32x4_t;

typedef uint16_t mve_pred16_t; /* a bit for each byte of a vector */

static inline mve_pred16_t vctp8q(uint32_t count)
{
    return (mve_pred16_t)(count < 16U ? (1U << count) - 1U : 0xFFFFU);
}

static inline mve_pred16_t vctp16q(uint32_t count)
{
    return vctp8q(count < 8U ? 2U * count : 16U);
}

static inline mve_pred16_t vctp32q(uint32_t count)
{
    return vctp8q(count < 4U ? 4U * count : 16U);
}

static inline int8x16_t vdupq_n_s8(int8_t value)
{
    int8x16_t v;
    for (int i = 0; i < 16; ++i) {
        v.lane[i] = value;
    }
    return v;
}

static inline int16x8_t vdupq_n_s16(int16_t value)
{
    int16x8_t v;
    for (int i = 0; i < 8; ++i) {
        v.lane[i] = value;
    }
    return v;
}

static inline int32x4_t vdupq_n_s32(int32_t value)
{
    const int32x4_t v = {{value, value, value, value}};
    return v;
}

static inline int8x16_t vldrbq_z_s8(const int8_t *from, mve_pred16_t some)
{
    int8x16_t v;
    for (int i = 0; i < 16; ++i) {
        v.lane[i] = (int8_t)(some >> i & 1 ? from[i] : 0);
    }
    return v;
}

static inline int8x16_t vldrbq_s8(const int8_t *from)
{
    return vldrbq_z_s8(from, 0xFFFF);
}

static inline int16x8_t vldrbq_s16(const int8_t *from)
{
    int16x8_t v;
    for (int i = 0; i < 8; ++i) {
        v.lane[i] = from[i];
    }
    return v;
}

static inline int32x4_t vldrbq_z_s32(const int8_t *from, mve_pred16_t some)
{
    int32x4_t v;
    for (int i = 0; i < 4; ++i) {
        v.lane[i] = some >> (4 * i) & 1 ? from[i] : 0;
    }
    return v;
}

static inline int32x4_t vldrbq_s32(const int8_t *from)
{
    return vldrbq_z_s32(from, 0xFFFF);
}

static inline int32x4_t vldrwq_s32(const int32_t *from)
{
    const int32x4_t v = {{from[0], from[1], from[2], from[3]}};
    return v;
}

static inline void vstrbq_p_s8(int8_t *to, int8x16_t v, mve_pred16_t some)
{
    for (int i = 0; i < 16; ++i) {
        if (some >> i & 1) {
            to[i] = v.lane[i];
        }
    }
}

static inline void vstrbq_s8(int8_t *to, int8x16_t v)
{
    vstrbq_p_s8(to, v, 0xFFFF);
}

static inline void vstrbq_p_s16(int8_t *to, int16x8_t v, mve_pred16_t some)
{
    for (int i = 0; i < 8; ++i) {
        if (some >> (2 * i) & 1) {
            to[i] = (int8_t)v.lane[i];
        }
    }
}

static inline void vstrbq_s16(int8_t *to, int16x8_t v)
{
    vstrbq_p_s16(to, v, 0xFFFF);
}

static inline void vstrbq_p_s32(int8_t *to, int32x4_t v, mve_pred16_t some)
{
    for (int i = 0; i < 4; ++i) {
        if (some >> (4 * i) & 1) {
            to[i] = (int8_t)v.lane[i];
        }
    }
}

static inline void vstrbq_s32(int8_t *to, int32x4_t v)
{
    vstrbq_p_s32(to, v, 0xFFFF);
}

static inline void vstrhq_s16(int16_t *to, int16x8_t v)
{
    for (int i = 0; i < 8; ++i) {
        to[i] = v.lane[i];
    }
}

static inline void vstrwq_s32(int32_t *to, int32x4_t v)
{
    for (int i = 0; i < 4; ++i) {
        to[i] = v.lane[i];
    }
}

/* The dot product, added to `sum`. */
static inline int32_t vmladavaq_s8(int32_t sum, int8x16_t a, int8x16_t b)
{
    for (int i = 0; i < 16; ++i) {
        sum += a.lane[i] * b.lane[i];
    }
    return sum;
}

static inline int32_t vmladavq_s8(int8x16_t a, int8x16_t b)
{
    return vmladavaq_s8(0, a, b);
}

static inline int16x8_t vmulq_s16(int16x8_t a, int16x8_t b)
{
    for (int i = 0; i < 8; ++i) {
        a.lane[i] = (int16_t)(a.lane[i] * b.lane[i]);
    }
    return a;
}

static inline int16x8_t vaddq_s16(int16x8_t a, int16x8_t b)
{
    for (int i = 0; i < 8; ++i) {
        a.lane[i] = (int16_t)(a.lane[i] + b.lane[i]);
    }
    return a;
}

static inline int32x4_t vaddq_s32(int32x4_t a, int32x4_t b)
{
    for (int i = 0; i < 4; ++i) {
        a.lane[i] = (int32_t)((uint32_t)a.lane[i] + (uint32_t)b.lane[i]);
    }
    return a;
}

static inline int32x4_t vaddq_n_s32(int32x4_t a, int32_t b)
{
    return vaddq_s32(a, vdupq_n_s32(b));
}

static inline int32x4_t vmaxq_s32(int32x4_t a, int32x4_t b)
{
    for (int i = 0; i < 4; ++i) {
        a.lane[i] = a.lane[i] > b.lane[i] ? a.lane[i] : b.lane[i];
    }
    return a;
}

static inline int32x4_t vminq_s32(int32x4_t a, int32x4_t b)
{
    for (int i = 0; i < 4; ++i) {
        a.lane[i] = a.lane[i] < b.lane[i] ? a.lane[i] : b.lane[i];
    }
    return a;
}

static inline int8x16_t vmaxq_s8(int8x16_t a, int8x16_t b)
{
    for (int i = 0; i < 16; ++i) {
        a.lane[i] = a.lane[i] > b.lane[i] ? a.lane[i] : b.lane[i];
    }
    return a;
}

static inline int8x16_t vminq_s8(int8x16_t a, int8x16_t b)
{
    for (int i = 0; i < 16; ++i) {
        a.lane[i] = a.lane[i] < b.lane[i] ? a.lane[i] : b.lane[i];
    }
    return a;
}

static inline int32x4_t vandq_s32(int32x4_t a, int32x4_t b)
{
    for (int i = 0; i < 4; ++i) {
        a.lane[i] = a.lane[i] & b.lane[i];
    }
    return a;
}

/* a + b * c. */
static inline int32x4_t vmlaq_n_s32(int32x4_t a, int32x4_t b, int32_t c)
{
    for (int i = 0; i < 4; ++i) {
        a.lane[i] = (int32_t)((uint32_t)a.lane[i] + (uint32_t)b.lane[i] * (uint32_t)c);
    }
    return a;
}

/* Shifts left by `bits`, 0 or more. */
static inline int32x4_t vshlq_r_s32(int32x4_t a, int32_t bits)
{
    for (int i = 0; i < 4; ++i) {
        a.lane[i] = (int32_t)((uint32_t)a.lane[i] << bits);
    }
    return a;
}

/* The even lanes, widened. */
static inline int32x4_t vmovlbq_s16(int16x8_t v)
{
    const int32x4_t w = {{v.lane[0], v.lane[2], v.lane[4], v.lane[6]}};
    return w;
}

/* The odd lanes, widened. */
static inline int32x4_t vmovltq_s16(int16x8_t v)
{
    const int32x4_t w = {{v.lane[1], v.lane[3], v.lane[5], v.lane[7]}};
    return w;
}

static inline int16_t saturated_s16(int32_t value)
{
    return (int16_t)(value > INT16_MAX ? INT16_MAX : value < INT16_MIN ? INT16_MIN : value);
}

/* `a`, saturated to 16 bits, as the even lanes of `v`. */
static inline int16x8_t vqmovnbq_s32(int16x8_t v, int32x4_t a)
{
    for (int i = 0; i < 4; ++i) {
        v.lane[2 * i] = saturated_s16(a.lane[i]);
    }
    return v;
}

/* `a`, saturated to 16 bits, as the odd lanes of `v`. */
static inline int16x8_t vqmovntq_s32(int16x8_t v, int32x4_t a)
{
    for (int i = 0; i < 4; ++i) {
        v.lane[2 * i + 1] = saturated_s16(a.lane[i]);
    }
    return v;
}

/* `a`, saturated to 8 bits, as the even lanes of `v`. */
static inline int8x16_t vqmovnbq_s16(int8x16_t v, int16x8_t a)
{
    for (int i = 0; i < 8; ++i) {
        v.lane[2 * i] = (int8_t)(a.lane[i] > INT8_MAX ? INT8_MAX : a.lane[i] < INT8_MIN ? INT8_MIN : a.lane[i]);
    }
    return v;
}

static inline int16x8_t vqaddq_n_s16(int16x8_t a, int16_t b)
{
    for (int i = 0; i < 8; ++i) {
        a.lane[i] = saturated_s16(a.lane[i] + b);
    }
    return a;
}

static inline int16x8_t vmaxq_s16(int16x8_t a, int16x8_t b)
{
    for (int i = 0; i < 8; ++i) {
        a.lane[i] = a.lane[i] > b.lane[i] ? a.lane[i] : b.lane[i];
    }
    return a;
}

static inline int16x8_t vminq_s16(int16x8_t a, int16x8_t b)
{
    for (int i = 0; i < 8; ++i) {
        a.lane[i] = a.lane[i] < b.lane[i] ? a.lane[i] : b.lane[i];
    }
    return a;
}

/* The same bits as lanes of twice the width. */
static inline int16x8_t vreinterpretq_s16_s8(int8x16_t a)
{
    int16x8_t v;
    for (int i = 0; i < 8; ++i) {
        v.lane[i] = (int16_t)((uint8_t)a.lane[2 * i] | (uint16_t)((uint8_t)a.lane[2 * i + 1] << 8));
    }
    return v;
}

/* The same bits as lanes of half the width. */
static inline int8x16_t vreinterpretq_s8_s16(int16x8_t a)
{
    int8x16_t v;
    for (int i = 0; i < 8; ++i) {
        v.lane[2 * i] = (int8_t)a.lane[i];
        v.lane[2 * i + 1] = (int8_t)(a.lane[i] >> 8);
    }
    return v;
}

static inline int16x8_t vuninitializedq_s16(void)
{
    return vdupq_n_s16(0);
}

/* The high word of the doubled product, rounded and saturated. */
static inline int32x4_t vqrdmulhq_s32(int32x4_t a, int32x4_t b)
{
    for (int i = 0; i < 4; ++i) {
        const int64_t high = ((int64_t)a.lane[i] * b.lane[i] + ((int64_t)1 << 30)) >> 31;
        a.lane[i] = high > INT32_MAX ? INT32_MAX : (int32_t)high;
    }
    return a;
}

static inline int32x4_t vqrdmulhq_n_s32(int32x4_t a, int32_t b)
{
    return vqrdmulhq_s32(a, vdupq_n_s32(b));
}

static inline int32x4_t vshrq_n_s32(int32x4_t a, int bits)
{
    for (int i = 0; i < 4; ++i) {
        a.lane[i] >>= bits;
    }
    return a;
}

/* Shifts right by -b, halves up; here no lane is shifted left. */
static inline int32x4_t vrshlq_s32(int32x4_t a, int32x4_t b)
{
    for (int i = 0; i < 4; ++i) {
        const int32_t right = -b.lane[i];
        a.lane[i] = right > 0 ? (int32_t)(((int64_t)a.lane[i] + ((int64_t)1 << (right - 1))) >> right) : a.lane[i];
    }
    return a;
}

static inline int32x4_t vrshlq_n_s32(int32x4_t a, int32_t b)
{
    return vrshlq_s32(a, vdupq_n_s32(b));
}

static inline uint8x16_t vldrbq_z_u8(const uint8_t *from, mve_pred16_t some)
{
    uint8x16_t v;
    for (int i = 0; i < 16; ++i) {
        v.lane[i] = (uint8_t)(some >> i & 1 ? from[i] : 0);
    }
    return v;
}

static inline uint8x16_t vldrbq_u8(const uint8_t *from)
{
    return vldrbq_z_u8(from, 0xFFFF);
}

static inline void vstrbq_p_u8(uint8_t *to, uint8x16_t v, mve_pred16_t some)
{
    for (int i = 0; i < 16; ++i) {
        if (some >> i & 1) {
            to[i] = v.lane[i];
        }
    }
}

static inline void vstrbq_u8(uint8_t *to, uint8x16_t v)
{
    vstrbq_p_u8(to, v, 0xFFFF);
}

/* The byte at each offset. */
static inline uint8x16_t vldrbq_gather_offset_u8(const uint8_t *base, uint8x16_t offsets)
{
    for (int i = 0; i < 16; ++i) {
        offsets.lane[i] = base[offsets.lane[i]];
    }
    return offsets;
}

/* The word at each index, or zero. */
static inline int32x4_t vldrwq_gather_shifted_offset_z_s32(const int32_t *base, uint32x4_t index, mve_pred16_t some)
{
    int32x4_t v;
    for (int i = 0; i < 4; ++i) {
        v.lane[i] = some >> (4 * i) & 1 ? base[index.lane[i]] : 0;
    }
    return v;
}

static inline uint32x4_t vreinterpretq_u32_s32(int32x4_t a)
{
    const uint32x4_t v = {{(uint32_t)a.lane[0], (uint32_t)a.lane[1], (uint32_t)a.lane[2], (uint32_t)a.lane[3]}};
    return v;
}

/* Where `some` holds and a lane is below `b`. */
static inline mve_pred16_t vcmpltq_m_n_s32(int32x4_t a, int32_t b, mve_pred16_t some)
{
    uint32_t below = 0;
    for (int i = 0; i < 4; ++i) {
        below |= a.lane[i] < b ? 0xFU << (4 * i) : 0U;
    }
    return (mve_pred16_t)(below & some);
}

static inline int8_t vmaxvq_p_s8(int8_t largest, int8x16_t a, mve_pred16_t some)
{
    for (int i = 0; i < 16; ++i) {
        largest = (some >> i & 1) && a.lane[i] > largest ? a.lane[i] : largest;
    }
    return largest;
}

static inline int32_t vaddvaq_s8(int32_t sum, int8x16_t a)
{
    for (int i = 0; i < 16; ++i) {
        sum += a.lane[i];
    }
    return sum;
}

static inline int32_t vaddvaq_s32(int32_t sum, int32x4_t a)
{
    for (int i = 0; i < 4; ++i) {
        sum = (int32_t)((uint32_t)sum + (uint32_t)a.lane[i]);
    }
    return sum;
}

static inline int32x4_t vmulq_s32(int32x4_t a, int32x4_t b)
{
    for (int i = 0; i < 4; ++i) {
        a.lane[i] = (int32_t)((uint32_t)a.lane[i] * (uint32_t)b.lane[i]);
    }
    return a;
}

static inline int32x4_t vsubq_s32(int32x4_t a, int32x4_t b)
{
    for (int i = 0; i < 4; ++i) {
        a.lane[i] = (int32_t)((uint32_t)a.lane[i] - (uint32_t)b.lane[i]);
    }
    return a;
}

/* Shifts right by `bits`, halves up. */
static inline int32x4_t vrshrq_n_s32(int32x4_t a, int bits)
{
    for (int i = 0; i < 4; ++i) {
        a.lane[i] = (int32_t)(((int64_t)a.lane[i] + ((int64_t)1 << (bits - 1))) >> bits);
    }
    return a;
}

/* Values of 16 bits. */
static inline int32x4_t vldrhq_z_s32(const int16_t *from, mve_pred16_t some)
{
    int32x4_t v;
    for (int i = 0; i < 4; ++i) {
        v.lane[i] = some >> (4 * i) & 1 ? from[i] : 0;
    }
    return v;
}

static inline int32x4_t vldrhq_s32(const int16_t *from)
{
    return vldrhq_z_s32(from, 0xFFFF);
}

static inline void vstrhq_p_s32(int16_t *to, int32x4_t v, mve_pred16_t some)
{
    for (int i = 0; i < 4; ++i) {
        if (some >> (4 * i) & 1) {
            to[i] = (int16_t)v.lane[i];
        }
    }
}

static inline void vstrhq_s32(int16_t *to, int32x4_t v)
{
    vstrhq_p_s32(to, v, 0xFFFF);
}

static inline void vstrhq_p_s16(int16_t *to, int16x8_t v, mve_pred16_t some)
{
    for (int i = 0; i < 8; ++i) {
        if (some >> (2 * i) & 1) {
            to[i] = v.lane[i];
        }
    }
}

static inline int16x8_t vldrhq_s16(const int16_t *from)
{
    int16x8_t v;
    for (int i = 0; i < 8; ++i) {
        v.lane[i] = from[i];
    }
    return v;
}

/* The dot product, added to `sum`. */
static inline int32_t vmladavaq_s16(int32_t sum, int16x8_t a, int16x8_t b)
{
    for (int i = 0; i < 8; ++i) {
        sum += a.lane[i] * b.lane[i];
    }
    return sum;
}

/* The products of the even lanes. */
static inline int32x4_t vmullbq_int_s16(int16x8_t a, int16x8_t b)
{
    int32x4_t v;
    for (int i = 0; i < 4; ++i) {
        v.lane[i] = a.lane[2 * i] * b.lane[2 * i];
    }
    return v;
}

/* The products of the odd lanes. */
static inline int32x4_t vmulltq_int_s16(int16x8_t a, int16x8_t b)
{
    int32x4_t v;
    for (int i = 0; i < 4; ++i) {
        v.lane[i] = a.lane[2 * i + 1] * b.lane[2 * i + 1];
    }
    return v;
}

#endif
