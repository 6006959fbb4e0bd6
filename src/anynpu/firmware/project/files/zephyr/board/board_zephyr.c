/* Zephyr: the console UART as the line, the kernel's cycle counter as the clock. */
#include "anynpu_board.h"

#include <zephyr/device.h>
#include <zephyr/drivers/uart.h>
#include <zephyr/kernel.h>
#ifdef CONFIG_ARCH_POSIX
#include <posix_board_if.h>
#endif

static const struct device *const line = DEVICE_DT_GET(DT_CHOSEN(zephyr_console));

void anynpu_board_init(void)
{
}

int anynpu_board_getc(void)
{
    unsigned char c = 0;
    while (uart_poll_in(line, &c) != 0) {
        k_yield();
    }
    return (int)c;
}

void anynpu_board_putc(char c)
{
    uart_poll_out(line, (unsigned char)c);
}

uint64_t anynpu_board_ticks(void)
{
#ifdef CONFIG_TIMER_HAS_64BIT_CYCLE_COUNTER
    return k_cycle_get_64();
#else
    /* The counter wraps after 2^32 cycles; an inference is shorter than that. */
    static uint32_t last;
    static uint64_t wraps;
    const uint32_t now = k_cycle_get_32();
    if (now < last) {
        wraps += (uint64_t)1 << 32;
    }
    last = now;
    return wraps + now;
#endif
}

uint32_t anynpu_board_tick_hz(void)
{
    return (uint32_t)sys_clock_hw_cycles_per_sec();
}

void anynpu_board_exit(int status)
{
#ifdef CONFIG_ARCH_POSIX
    posix_exit(status);
#else
    (void)status;
    k_sleep(K_FOREVER);
#endif
}

const char *anynpu_board_name(void)
{
    return "@BOARD@-" CONFIG_BOARD;
}
