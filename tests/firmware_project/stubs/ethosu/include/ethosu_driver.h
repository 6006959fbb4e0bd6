/* The calls of Arm's Ethos-U driver that the board layer makes. */
#ifndef ETHOSU_DRIVER_H
#define ETHOSU_DRIVER_H
#include <stddef.h>
#include <stdint.h>
struct ethosu_driver { void *base; };
int ethosu_init(struct ethosu_driver *drv, void *const base_address, const void *fast_memory,
                const size_t fast_memory_size, uint32_t secure_enable, uint32_t privilege_enable);
void ethosu_irq_handler(struct ethosu_driver *drv);
#endif
