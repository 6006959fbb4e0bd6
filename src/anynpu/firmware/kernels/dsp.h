/* Products of 16 bits, two at once, Arm's DSP extension (SMLAD). Another processor gets the same results from the
   functions below: they check this code on a computer and are not meant to be fast. */
#if defined(__ARM_FEATURE_DSP) && __ARM_FEATURE_DSP

#include <arm_acle.h>

#define IN_ORDER(pointer) __asm__ volatile("" : "+r"(pointer) : : "memory")

/* Instructions in a form that arm_acle.h has no function for. The high word of a product, rounded: */
static inline int32_t high_dsp(int32_t a, int32_t b)
{
    int32_t high;
    __asm__("smmulr %0, %1, %2" : "=r"(high) : "r"(a), "r"(b));
    return high;
}

/* Bytes 1 and 3, each widened to 16 bits. */
static inline int16x2_t odd_bytes_dsp(int8x4_t a)
{
    int16x2_t pair;
    __asm__("sxtb16 %0, %1, ror #8" : "=r"(pair) : "r"(a));
    return pair;
}

/* Half of a value, rounded down and saturated to 8 bits. */
static inline int32_t saturated_half_dsp(int32_t a)
{
    int32_t half;
    __asm__("ssat %0, #8, %1, asr #1" : "=r"(half) : "r"(a));
    return half;
}

#elif defined(__arm__)

#error "generated for a core with the DSP extension (SMLAD): build the model with -O kernels=plain for this core"

#else

#define IN_ORDER(pointer) (void)(pointer)

typedef int32_t int16x2_t;
typedef int32_t int8x4_t;

/* Bytes 0 and 2, each widened to 16 bits. */
static inline int16x2_t __sxtb16(int8x4_t a)
{
    const int32_t low = (int8_t)(a & 0xFF);
    const int32_t high = (int8_t)(a >> 16 & 0xFF);
    return (int32_t)(((uint32_t)low & 0xFFFFU) | (uint32_t)high << 16);
}

/* Bytes 1 and 3, each widened to 16 bits. */
static inline int16x2_t odd_bytes_dsp(int8x4_t a)
{
    return __sxtb16((int32_t)((uint32_t)a >> 8 | (uint32_t)a << 24));
}

/* Half of a value, rounded down and saturated to 8 bits. */
static inline int32_t saturated_half_dsp(int32_t a)
{
    a >>= 1;
    return a < INT8_MIN ? INT8_MIN : a > INT8_MAX ? INT8_MAX : a;
}

/* Both products of 16 bits, added to `sum`. */
static inline int32_t __smlad(int16x2_t a, int16x2_t b, int32_t sum)
{
    const int32_t low = (int16_t)(a & 0xFFFF) * (int16_t)(b & 0xFFFF);
    return (int32_t)((uint32_t)sum + (uint32_t)low + (uint32_t)((a >> 16) * (b >> 16)));
}

/* The product of the low halves, added to `sum`. */
static inline int32_t __smlabb(int32_t a, int32_t b, int32_t sum)
{
    return sum + (int16_t)(a & 0xFFFF) * (int16_t)(b & 0xFFFF);
}

/* The product of the high halves, added to `sum`. */
static inline int32_t __smlatt(int32_t a, int32_t b, int32_t sum)
{
    return sum + (a >> 16) * (b >> 16);
}

/* The high word of a product, rounded. */
static inline int32_t high_dsp(int32_t a, int32_t b)
{
    return (int32_t)(((int64_t)a * b + ((int64_t)1 << 31)) >> 32);
}

#endif
