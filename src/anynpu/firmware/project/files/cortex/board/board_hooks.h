/* What only you know of your board. Every function has a weak default; define those you need in a file of your own
   and name it in BOARD_SOURCES. */
#ifndef BOARD_HOOKS_H
#define BOARD_HOOKS_H

#include <stdint.h>

void board_uart_init(void);        /* Default: nothing. */
int board_uart_read(void);         /* A character, -1 if none has come. Default: the debugger's ITM channel. */
void board_uart_write(uint8_t c);  /* Default: the debugger's ITM channel. */
int board_npu_init(void);          /* Starts the NPU; 0 on success. Default: there is none. */

#endif
