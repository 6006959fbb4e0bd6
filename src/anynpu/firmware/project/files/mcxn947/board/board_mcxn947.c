/* NXP MCX N947 with the MCUXpresso SDK: the debug console as the line. */
#include "anynpu_board.h"
#include "board.h"
#include "clock_config.h"
#include "fsl_debug_console.h"
#include "pin_mux.h"
#include "ticks_systick.h"

void anynpu_board_init(void)
{
    BOARD_InitBootPins();
    BOARD_InitBootClocks();
    BOARD_InitDebugConsole();
    SystemCoreClockUpdate();
    ticks_start();
}

int anynpu_board_getc(void)
{
    int c;
    do {
        c = GETCHAR();
    } while (c < 0);
    return c;
}

void anynpu_board_putc(char c)
{
    (void)PUTCHAR(c);
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
