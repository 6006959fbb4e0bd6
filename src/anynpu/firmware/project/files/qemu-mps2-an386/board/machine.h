/* mps2-an386: Cortex-M4F at 25 MHz. */
#define BOARD_NAME "qemu-mps2-an386"
#define CLOCK_MHZ 25u
#define UART_BASE 0x40004000u
