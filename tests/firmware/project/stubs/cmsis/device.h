/* The least of a CMSIS device header that the board layer uses. */
#ifndef DEVICE_H
#define DEVICE_H
#include <stdint.h>
typedef enum { SysTick_IRQn = -1, NPU_IRQn = 56 } IRQn_Type;
typedef struct { volatile uint32_t CTRL, LOAD, VAL, CALIB; } SysTick_Type;
typedef struct { volatile uint32_t CPUID, ICSR; } SCB_Type;
#define SysTick ((SysTick_Type *)0xE000E010u)
#define SCB ((SCB_Type *)0xE000ED00u)
#define SCB_ICSR_PENDSTSET_Msk (1u << 26)
#define ITM_BASE 0xE0000000u
#define ITM_RXBUFFER_EMPTY ((int32_t)0x5AA55AA5)
extern uint32_t SystemCoreClock;
void SystemCoreClockUpdate(void);
void NVIC_EnableIRQ(IRQn_Type irq);
static inline uint32_t SysTick_Config(uint32_t ticks)
{
    SysTick->LOAD = ticks - 1u;
    SysTick->VAL = 0;
    SysTick->CTRL = 7u;
    return 0;
}
static inline uint32_t ITM_SendChar(uint32_t c) { return c; }
static inline int32_t ITM_ReceiveChar(void) { return -1; }
static inline void __WFI(void) { __asm__ volatile("wfi"); }
#endif
