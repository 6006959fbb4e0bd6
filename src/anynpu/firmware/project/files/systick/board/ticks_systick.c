#include "ticks_systick.h"

#include "anynpu_board.h"

#define TICKS 0x1000000u /* SysTick counts 24 bits; the interrupt counts the wraps. */

static volatile uint32_t wraps;

void SysTick_Handler(void)
{
    wraps = wraps + 1u;
}

__attribute__((weak)) uint32_t anynpu_board_clock_hz(void)
{
    return SystemCoreClock;
}

void ticks_start(void)
{
    (void)SysTick_Config(TICKS);
}

uint64_t anynpu_board_ticks(void)
{
    uint32_t before;
    uint32_t count;
    do {
        before = wraps;
        count = SysTick->VAL;
        /* A wrap whose interrupt has not been taken yet would make time run backwards: look again. */
    } while (before != wraps || (SCB->ICSR & SCB_ICSR_PENDSTSET_Msk) != 0u);
    return (uint64_t)before * TICKS + (TICKS - 1u - count);
}

uint32_t anynpu_board_tick_hz(void)
{
    return anynpu_board_clock_hz();
}
