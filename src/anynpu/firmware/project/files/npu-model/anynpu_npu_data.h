/* What the NPU reads: command streams, and weights with their scales. Generated; do not edit. */
#ifndef ANYNPU_NPU_DATA_H
#define ANYNPU_NPU_DATA_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

@ARRAYS@

#ifdef __cplusplus
}
#endif

#endif
