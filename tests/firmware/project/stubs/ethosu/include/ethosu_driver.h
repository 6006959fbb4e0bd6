/* The calls of Arm's Ethos-U driver that the board layer and the model make. */
#ifndef ETHOSU_DRIVER_H
#define ETHOSU_DRIVER_H
#include <stddef.h>
#include <stdint.h>
struct ethosu_driver { void *base; };
int ethosu_init(struct ethosu_driver *drv, void *const base_address, const void *fast_memory,
                const size_t fast_memory_size, uint32_t secure_enable, uint32_t privilege_enable);
void ethosu_irq_handler(struct ethosu_driver *drv);
struct ethosu_driver *ethosu_reserve_driver(void);
void ethosu_release_driver(struct ethosu_driver *drv);
int ethosu_invoke_v3(struct ethosu_driver *drv, const void *custom_data_ptr, const int custom_data_size,
                     uint64_t *const base_addr, const size_t *base_addr_size, const int num_base_addr, void *user_arg);
#endif
