/* QEMU's Arm MPS boards: a CMSDK UART as the line, SysTick as the clock, semihosting for the exit status. */
#include "anynpu_board.h"

#include "machine.h"

#define UART_DATA (*(volatile uint32_t *)(UART_BASE + 0x00u))
#define UART_STATE (*(volatile uint32_t *)(UART_BASE + 0x04u))
#define UART_CTRL (*(volatile uint32_t *)(UART_BASE + 0x08u))
#define UART_BAUDDIV (*(volatile uint32_t *)(UART_BASE + 0x10u))
#define TX_FULL 1u
#define RX_FULL 2u

#define SYST_CSR (*(volatile uint32_t *)0xE000E010u)
#define SYST_RVR (*(volatile uint32_t *)0xE000E014u)
#define SYST_CVR (*(volatile uint32_t *)0xE000E018u)
#define ICSR (*(volatile uint32_t *)0xE000ED04u)
#define PENDSTSET (1u << 26)
#define TICKS 0x1000000u /* SysTick counts 24 bits. */

static volatile uint32_t wraps;

void SysTick_Handler(void)
{
    wraps = wraps + 1u;
}

void anynpu_board_init(void)
{
    UART_BAUDDIV = 16u;
    UART_CTRL = 3u;
    SYST_RVR = TICKS - 1u;
    SYST_CVR = 0u;
    SYST_CSR = 7u; /* Processor clock, interrupt at every wrap, on. */
}

int anynpu_board_getc(void)
{
    while ((UART_STATE & RX_FULL) == 0u) {
    }
    return (int)(UART_DATA & 0xFFu);
}

void anynpu_board_putc(char c)
{
    while ((UART_STATE & TX_FULL) != 0u) {
    }
    UART_DATA = (uint8_t)c;
}

/* With -icount shift=0 QEMU's clock advances by 1 ns an instruction, so SysTick counts instructions in steps of
   1000 / MHz. */
uint64_t anynpu_board_ticks(void)
{
    uint32_t before;
    uint32_t count;
    do {
        before = wraps;
        count = SYST_CVR;
        /* A wrap whose interrupt has not been taken yet would make time run backwards: look again. */
    } while (before != wraps || (ICSR & PENDSTSET) != 0u);
    return ((uint64_t)before * TICKS + (TICKS - 1u - count)) * 1000u / CLOCK_MHZ;
}

uint32_t anynpu_board_tick_hz(void)
{
    return 0; /* Instructions, not time. */
}

void anynpu_board_exit(int status)
{
    /* SYS_EXIT_EXTENDED with ADP_Stopped_ApplicationExit. */
    const uint32_t block[2] = {0x20026u, (uint32_t)status};
    register uint32_t operation __asm__("r0") = 0x20u;
    register const uint32_t *argument __asm__("r1") = block;
    __asm__ volatile("bkpt 0xAB" : "+r"(operation) : "r"(argument) : "memory");
    for (;;) {
    }
}

const char *anynpu_board_name(void)
{
    return BOARD_NAME;
}
