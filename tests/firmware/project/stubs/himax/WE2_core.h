#include "WE2_device.h"
void EPII_NVIC_SetVector(IRQn_Type irq, uint32_t vector);
