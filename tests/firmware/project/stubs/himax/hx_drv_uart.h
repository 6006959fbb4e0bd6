#include <stdint.h>
typedef enum { USE_DW_UART_0 } USE_DW_UART_E;
#define UART_BAUDRATE_921600 921600
typedef struct {
    int32_t (*uart_open)(uint32_t baud);
    int32_t (*uart_write)(const void *data, uint32_t length);
    int32_t (*uart_read)(void *data, uint32_t length);
} DEV_UART;
DEV_UART *hx_drv_uart_get_dev(USE_DW_UART_E id);
