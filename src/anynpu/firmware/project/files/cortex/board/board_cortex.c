/* Any Cortex-M with a CMSIS device header; board_hooks.h says what you may replace. */
#include "anynpu_board.h"
#include "anynpu_text.h"
#include "board_hooks.h"
#include "ticks_systick.h"

/* ARMv6-M and ARMv8-M baseline have no ITM. */
#if defined(ITM_BASE)
extern volatile int32_t ITM_RxBuffer;
volatile int32_t ITM_RxBuffer = ITM_RXBUFFER_EMPTY;
#endif

__attribute__((weak)) void board_uart_init(void)
{
}

__attribute__((weak)) int board_uart_read(void)
{
#if defined(ITM_BASE)
    return (int)ITM_ReceiveChar();
#else
    return -1;
#endif
}

__attribute__((weak)) void board_uart_write(uint8_t c)
{
#if defined(ITM_BASE)
    (void)ITM_SendChar(c);
#else
    (void)c;
#endif
}

__attribute__((weak)) int board_npu_init(void)
{
    return 0;
}

void anynpu_board_init(void)
{
    SystemCoreClockUpdate();
    ticks_start();
    board_uart_init();
    const int status = board_npu_init();
    if (status != 0) {
        anynpu_put("e-[The NPU does not start: ");
        anynpu_put_signed(status);
        anynpu_put_line("]");
    }
}

int anynpu_board_getc(void)
{
    int c;
    do {
        c = board_uart_read();
    } while (c < 0);
    return c;
}

void anynpu_board_putc(char c)
{
    board_uart_write((uint8_t)c);
}

void anynpu_board_exit(int status)
{
    (void)status; /* The line has said it; there is nothing to return to. */
    for (;;) {
        __WFI();
    }
}

const char *anynpu_board_name(void)
{
    return "@BOARD@";
}
