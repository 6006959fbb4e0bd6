/* The compiled TFLite file, 16-byte aligned for the NPU. */
#ifndef ANYNPU_MODEL_DATA_H
#define ANYNPU_MODEL_DATA_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

extern const uint32_t anynpu_model_data_bytes;
extern const uint8_t anynpu_model_data[];

#ifdef __cplusplus
}
#endif

#endif
