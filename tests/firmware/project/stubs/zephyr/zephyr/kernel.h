#ifndef ZEPHYR_KERNEL_H
#define ZEPHYR_KERNEL_H
#include <stdint.h>
#define CONFIG_BOARD "stub"
typedef struct { int64_t ticks; } k_timeout_t;
#define K_FOREVER ((k_timeout_t){-1})
int32_t k_sleep(k_timeout_t timeout);
void k_yield(void);
uint32_t k_cycle_get_32(void);
uint64_t k_cycle_get_64(void);
int sys_clock_hw_cycles_per_sec(void);
#endif
