/* What the application needs of a board; the files under board/ give it. */
#ifndef BOARD_H
#define BOARD_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

void board_init(void);
int board_getc(void);         /* Waits for a character of the line; -1 when no more can come. */
void board_putc(char c);
uint64_t board_ticks(void);   /* Never runs backwards. */
uint32_t board_tick_hz(void); /* Ticks per second; 0 says that ticks are executed instructions, not time. */
void board_exit(int status);  /* Returns only where there is nothing to return to. */
const char *board_name(void);

#ifdef __cplusplus
}
#endif

#endif
