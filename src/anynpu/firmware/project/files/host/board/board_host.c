/* A computer as the board: the line is stdin and stdout, which may be a terminal (a pty). */
#define _POSIX_C_SOURCE 200809L

#include <stdio.h>
#include <stdlib.h>
#include <termios.h>
#include <time.h>
#include <unistd.h>

#include "anynpu_board.h"

static struct termios before;
static int changed;

static void restore(void)
{
    if (changed) {
        (void)tcsetattr(STDIN_FILENO, TCSANOW, &before);
    }
}

void anynpu_board_init(void)
{
    struct termios now;
    if (isatty(STDIN_FILENO) && tcgetattr(STDIN_FILENO, &before) == 0) {
        /* A serial line does not echo and gives every character at once. */
        now = before;
        now.c_lflag &= ~(tcflag_t)(ICANON | ECHO);
        now.c_iflag &= ~(tcflag_t)(ICRNL | INLCR);
        now.c_oflag &= ~(tcflag_t)OPOST;
        now.c_cc[VMIN] = 1;
        now.c_cc[VTIME] = 0;
        changed = tcsetattr(STDIN_FILENO, TCSANOW, &now) == 0;
        (void)atexit(restore);
    }
}

int anynpu_board_getc(void)
{
    const int c = getchar();
    return c == EOF ? -1 : c;
}

void anynpu_board_putc(char c)
{
    (void)putchar(c);
    if (c == '\n') {
        (void)fflush(stdout);
    }
}

uint64_t anynpu_board_ticks(void)
{
    struct timespec now;
    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

uint32_t anynpu_board_tick_hz(void)
{
    return 1000000000u;
}

void anynpu_board_exit(int status)
{
    (void)fflush(stdout);
    exit(status);
}

const char *anynpu_board_name(void)
{
    return "host";
}
