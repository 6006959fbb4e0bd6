#ifndef WE2_DEVICE_H
#define WE2_DEVICE_H
#define IRQn_Type Stub_IRQn_Type
#define NVIC_EnableIRQ stub_enable
#include "../cmsis/device.h"
#undef IRQn_Type
#undef NVIC_EnableIRQ
typedef enum { U55_IRQn = 80 } IRQn_Type;
#define BASE_ADDR_APB_U55_CTRL 0x40160000u
#define BASE_ADDR_APB_U55_CTRL_ALIAS 0x50160000u
void NVIC_EnableIRQ(IRQn_Type irq);
#endif
