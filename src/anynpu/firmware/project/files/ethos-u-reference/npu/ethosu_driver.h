/* The calls of Arm's Ethos-U driver that a model needs, for builds without it: ethosu_reference.c answers them by
   executing the command stream on the processor. With the real driver its own header takes the place of this one. */
#ifndef ETHOSU_DRIVER_H
#define ETHOSU_DRIVER_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

struct ethosu_driver {
    uint8_t *fast_memory;
    size_t fast_memory_size;
};

/* 0. The address of the NPU's registers is not looked at. */
int ethosu_init(struct ethosu_driver *drv, void *const base_address, const void *fast_memory,
                const size_t fast_memory_size, uint32_t secure_enable, uint32_t privilege_enable);
void ethosu_deinit(struct ethosu_driver *drv);
void ethosu_irq_handler(struct ethosu_driver *drv);

/* The driver that was initialised last, or one without fast memory. */
struct ethosu_driver *ethosu_reserve_driver(void);
void ethosu_release_driver(struct ethosu_driver *drv);

/* Executes the payload of an `ethos-u` operator; 0, or -1 where it cannot be executed. */
int ethosu_invoke_v3(struct ethosu_driver *drv, const void *custom_data_ptr, const int custom_data_size,
                     uint64_t *const base_addr, const size_t *base_addr_size, const int num_base_addr, void *user_arg);

#ifdef __cplusplus
}
#endif

#endif
