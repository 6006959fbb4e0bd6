/* The least of what CubeMX writes and the HAL declares that the board layer uses. */
#ifndef MAIN_H
#define MAIN_H
#include <stdint.h>
typedef struct { uint32_t Instance; } UART_HandleTypeDef;
typedef enum { HAL_OK, HAL_ERROR, HAL_BUSY, HAL_TIMEOUT } HAL_StatusTypeDef;
typedef struct { volatile uint32_t CTRL, LOAD, VAL, CALIB; } SysTick_Type;
typedef struct { volatile uint32_t CPUID, ICSR; } SCB_Type;
#define SysTick ((SysTick_Type *)0xE000E010u)
#define SCB ((SCB_Type *)0xE000ED00u)
#define SCB_ICSR_PENDSTSET_Msk (1u << 26)
#define HAL_MAX_DELAY 0xFFFFFFFFu
HAL_StatusTypeDef HAL_UART_Receive(UART_HandleTypeDef *uart, uint8_t *data, uint16_t size, uint32_t timeout);
HAL_StatusTypeDef HAL_UART_Transmit(UART_HandleTypeDef *uart, const uint8_t *data, uint16_t size, uint32_t timeout);
uint32_t HAL_GetTick(void);
#endif
