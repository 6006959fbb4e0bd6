/* SysTick as the clock of a board with a CMSIS device header. */
#ifndef TICKS_SYSTICK_H
#define TICKS_SYSTICK_H

#include <stdint.h>

/* Name the device's header when you compile: -DCMSIS_DEVICE_HEADER='"ARMCM55.h"'. */
#ifndef CMSIS_DEVICE_HEADER
#error "define CMSIS_DEVICE_HEADER as the header of your device, in quotes"
#endif
#include CMSIS_DEVICE_HEADER

void ticks_start(void);
uint32_t anynpu_board_clock_hz(void); /* Weak: SystemCoreClock; define your own if SysTick runs at another rate. */
void SysTick_Handler(void);

#endif
