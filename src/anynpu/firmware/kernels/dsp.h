/* Two products of 16 bits at once, Arm's DSP extension (SMLAD). Another processor gets the same results from the
   functions below: they check this code on a computer and are not meant to be fast. */
#if defined(__ARM_FEATURE_DSP) && __ARM_FEATURE_DSP

#include <arm_acle.h>

#define IN_ORDER(pointer) __asm__ volatile("" : "+r"(pointer) : : "memory")

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

/* Both products of 16 bits, added to `sum`. */
static inline int32_t __smlad(int16x2_t a, int16x2_t b, int32_t sum)
{
    const int32_t low = (int16_t)(a & 0xFFFF) * (int16_t)(b & 0xFFFF);
    return (int32_t)((uint32_t)sum + (uint32_t)low + (uint32_t)((a >> 16) * (b >> 16)));
}

#endif
