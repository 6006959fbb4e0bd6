/* The Ethos-U beside the Cortex-M, through Arm's driver. */
#include <stddef.h>

#include "anynpu_board.h"
#include "board_hooks.h"
#include "ethosu_driver.h"
#include "ticks_systick.h"

/* Where the NPU's registers are, its interrupt and the name of its handler in the device's vector table. */
#if !defined(ETHOSU_BASE) || !defined(ETHOSU_IRQN) || !defined(ETHOSU_HANDLER)
#error "define ETHOSU_BASE, ETHOSU_IRQN and ETHOSU_HANDLER for your device"
#endif

/* Memory that only the NPU uses; a model compiled with a Dedicated_Sram memory mode needs it. */
#ifndef ETHOSU_FAST_MEMORY_BYTES
#define ETHOSU_FAST_MEMORY_BYTES 0
#endif

#if ETHOSU_FAST_MEMORY_BYTES < @FAST_MEMORY@
#error "the model needs @FAST_MEMORY@ bytes of fast memory: ETHOSU_FAST_MEMORY_BYTES"
#endif

#ifndef ETHOSU_SECURE
#define ETHOSU_SECURE 1
#endif

struct ethosu_driver ethosu0_driver;

#if ETHOSU_FAST_MEMORY_BYTES > 0
static uint8_t fast_memory[ETHOSU_FAST_MEMORY_BYTES] __attribute__((aligned(16), section(".bss.ethosu_fast_memory")));
#define FAST_MEMORY fast_memory
#else
#define FAST_MEMORY NULL
#endif

void ETHOSU_HANDLER(void);

void ETHOSU_HANDLER(void)
{
    ethosu_irq_handler(&ethosu0_driver);
}

int board_npu_init(void)
{
    const int status = ethosu_init(
        &ethosu0_driver, (void *)(ETHOSU_BASE), FAST_MEMORY, ETHOSU_FAST_MEMORY_BYTES, ETHOSU_SECURE, 1);
    NVIC_EnableIRQ((IRQn_Type)ETHOSU_IRQN);
    return status;
}

const char *anynpu_npu_name(void)
{
    return "@ACCELERATOR@ through Arm's driver";
}

void anynpu_npu_explain(void)
{
    /* The driver logs what the NPU reported (ETHOSU_LOG_SEVERITY). */
}
