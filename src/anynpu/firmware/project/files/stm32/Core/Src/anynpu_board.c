/* STM32 with the HAL: a UART that CubeMX has set up, and SysTick as the HAL leaves it. */
#include "anynpu_board.h"

#include "main.h"

/* The handle of the UART, as CubeMX names it in main.c. */
#ifndef ANYNPU_UART
#define ANYNPU_UART huart2
#endif

extern UART_HandleTypeDef ANYNPU_UART;

void anynpu_board_init(void)
{
    /* main.c has called HAL_Init, SystemClock_Config and MX_USARTx_UART_Init. */
}

int anynpu_board_getc(void)
{
    uint8_t c = 0;
    while (HAL_UART_Receive(&ANYNPU_UART, &c, 1u, HAL_MAX_DELAY) != HAL_OK) {
    }
    return (int)c;
}

void anynpu_board_putc(char c)
{
    uint8_t byte = (uint8_t)c;
    (void)HAL_UART_Transmit(&ANYNPU_UART, &byte, 1u, HAL_MAX_DELAY);
}

/* Processor clocks: the HAL counts the wraps of SysTick, which counts down between them. */
uint64_t anynpu_board_ticks(void)
{
    uint32_t before;
    uint32_t count;
    do {
        before = HAL_GetTick();
        count = SysTick->VAL;
        /* A wrap that the HAL has not counted yet would make time run backwards: look again. */
    } while (before != HAL_GetTick() || (SCB->ICSR & SCB_ICSR_PENDSTSET_Msk) != 0u);
    return (uint64_t)before * (SysTick->LOAD + 1u) + (SysTick->LOAD - count);
}

uint32_t anynpu_board_tick_hz(void)
{
    return (SysTick->LOAD + 1u) * 1000u; /* The HAL makes SysTick wrap every millisecond. */
}

void anynpu_board_exit(int status)
{
    (void)status; /* Back to main.c. */
}

const char *anynpu_board_name(void)
{
    return "@BOARD@";
}
