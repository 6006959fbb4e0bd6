#include <stdint.h>
void hx_drv_swreg_aon_get_pllfreq(uint32_t *frequency);
