/* What the application needs of a board; the files under board/ give it. */
#ifndef ANYNPU_BOARD_H
#define ANYNPU_BOARD_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

void anynpu_board_init(void);
int anynpu_board_getc(void);         /* Waits for a character of the line; -1 when no more can come. */
void anynpu_board_putc(char c);
uint64_t anynpu_board_ticks(void);   /* Never runs backwards. */
uint32_t anynpu_board_tick_hz(void); /* Ticks per second; 0 says that ticks are executed instructions, not time. */
void anynpu_board_exit(int status);  /* Returns only where there is nothing to return to. */
const char *anynpu_board_name(void);

/* Boards of models that define ANYNPU_HAS_NPU. */
const char *anynpu_npu_name(void); /* What executes the NPU's commands. */
void anynpu_npu_explain(void);     /* Prints why they could not be executed, where that is known. */

#ifdef __cplusplus
}
#endif

#endif
