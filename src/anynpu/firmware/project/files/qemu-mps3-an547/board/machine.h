/* mps3-an547: Cortex-M55 at 32 MHz, running secure. */
#define BOARD_NAME "qemu-mps3-an547"
#define CLOCK_MHZ 32u
#define UART_BASE 0x59303000u
