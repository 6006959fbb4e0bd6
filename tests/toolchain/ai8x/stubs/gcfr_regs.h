/* The registers that switch the accelerator on; see mxc.h. */
#ifndef GCFR_REGS_H
#define GCFR_REGS_H
#include <stdint.h>
typedef struct {
  volatile uint32_t reg0, reg1, reg2, reg3;
} mxc_gcfr_regs_t;
#define MXC_GCFR ((mxc_gcfr_regs_t *)0x40005800)
#define MXC_BASE_GCFR 0x40005800
#endif
