/* Just enough of Analog Devices' SDK headers for a compiler to check generated projects; nothing here runs. */
#ifndef MXC_H
#define MXC_H
#include <stdint.h>

typedef int8_t q7_t;
typedef int16_t q15_t;
typedef int32_t q31_t;
typedef struct {
  volatile uint32_t pclkdiv, ipll_ctrl, clkctrl, pm;
} mxc_gcr_regs_t;
typedef struct {
  volatile uint32_t out;
} mxc_gpio_regs_t;
typedef struct {
  mxc_gpio_regs_t *port;
  uint32_t mask, pad, func, vssel, drvstr;
} mxc_gpio_cfg_t;
typedef enum { MXC_TMR0, MXC_TMR1 } mxc_tmr_regs_t;

#define MXC_GCR ((mxc_gcr_regs_t *)0x40000000)
#define MXC_F_GCR_PCLKDIV_CNNCLKDIV 1u
#define MXC_F_GCR_PCLKDIV_CNNCLKSEL 2u
#define MXC_S_GCR_PCLKDIV_CNNCLKDIV_DIV1 4u
#define MXC_S_GCR_PCLKDIV_CNNCLKSEL_PCLK 8u
#define MXC_GPIO_FUNC_OUT 1
#define MXC_GPIO_PAD_NONE 0
#define MXC_ICC0 0
#define MXC_SYS_CLOCK_IPO 0
#define MXC_SYS_PERIPH_CLOCK_CNN 0

enum { CNN_IRQn = 1 };

void MXC_Delay(uint32_t);
void MXC_GPIO_Config(const mxc_gpio_cfg_t *);
void MXC_GPIO_OutClr(mxc_gpio_regs_t *, uint32_t);
void MXC_GPIO_OutSet(mxc_gpio_regs_t *, uint32_t);
void MXC_ICC_Enable(uint32_t);
void MXC_LP_EnterSleepMode(void);
void MXC_NVIC_SetVector(int, void (*)(void));
void MXC_SYS_ClockDisable(int);
void MXC_SYS_ClockEnable(int);
int MXC_SYS_Clock_Select(int);
void MXC_TMR_SW_Start(mxc_tmr_regs_t);
unsigned int MXC_TMR_SW_Stop(mxc_tmr_regs_t);
void NVIC_EnableIRQ(int);
void SystemCoreClockUpdate(void);
void LED_On(unsigned int);
void LED_Off(unsigned int);
void __WFI(void);
void __enable_irq(void);
#define SEC(s) ((s) * 1000000u)
#define MSEC(ms) ((ms) * 1000u)
#endif
