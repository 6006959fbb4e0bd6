/* Why the reference executor ended the last stream. */
#ifndef ETHOSU_FAULT_H
#define ETHOSU_FAULT_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The reason, or a null pointer after a stream that ran to its end; `operation` is the one that it ended in. */
const char *ethosu_reference_fault(uint32_t *operation);

#ifdef __cplusplus
}
#endif

#endif
