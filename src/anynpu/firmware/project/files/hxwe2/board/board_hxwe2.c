/* Himax WiseEye2 with its SDK: UART 0 as the line, Ethos-U55 through the SDK's copy of Arm's driver. */
#include <stdbool.h>
#include <stddef.h>

#include "WE2_core.h"
#include "WE2_device.h"
#include "anynpu_board.h"
#include "anynpu_text.h"
#include "board.h"
#include "ethosu_driver.h"
#include "hx_drv_swreg_aon.h"
#include "hx_drv_uart.h"
#include "ticks_systick.h"

#ifdef TRUSTZONE_SEC
#define NPU_BASE BASE_ADDR_APB_U55_CTRL_ALIAS
#else
#define NPU_BASE BASE_ADDR_APB_U55_CTRL
#endif

#ifndef ANYNPU_BAUD
#define ANYNPU_BAUD UART_BAUDRATE_921600
#endif

struct ethosu_driver ethosu_drv;

static DEV_UART *line;

static void npu_handler(void)
{
    ethosu_irq_handler(&ethosu_drv);
}

/* The SDK asks every application for its pins; UART 0 is set up by the boot loader. */
void pinmux_init(void);
void pinmux_init(void)
{
}

uint32_t anynpu_board_clock_hz(void)
{
    uint32_t hz = 0;
    hx_drv_swreg_aon_get_pllfreq(&hz);
    return hz;
}

void anynpu_board_init(void)
{
    board_init();
    ticks_start();
    line = hx_drv_uart_get_dev(USE_DW_UART_0);
    line->uart_open(ANYNPU_BAUD);
    EPII_NVIC_SetVector(U55_IRQn, (uint32_t)npu_handler);
    NVIC_EnableIRQ(U55_IRQn);
    if (ethosu_init(&ethosu_drv, (void *)NPU_BASE, NULL, 0, 1, 1) != 0) {
        anynpu_put_line("e-[The NPU does not start]");
    }
}

int anynpu_board_getc(void)
{
    uint8_t c = 0;
    while (line->uart_read(&c, 1) <= 0) {
    }
    return (int)c;
}

void anynpu_board_putc(char c)
{
    (void)line->uart_write(&c, 1);
}

void anynpu_board_exit(int status)
{
    (void)status; /* The line has said it; there is nothing to return to. */
    for (;;) {
        __WFI();
    }
}

const char *anynpu_npu_name(void)
{
    return "@ACCELERATOR@ through the SDK's driver";
}

void anynpu_npu_explain(void)
{
    /* The driver logs what the NPU reported. */
}

const char *anynpu_board_name(void)
{
    return "@BOARD@";
}
