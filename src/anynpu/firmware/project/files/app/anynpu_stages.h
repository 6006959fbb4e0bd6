/* How long each stage of an inference takes: initialisation, memory I/O, inference, post-processing. */
#ifndef ANYNPU_STAGES_H
#define ANYNPU_STAGES_H

#include <stdint.h>

#include "anynpu_model.h"

#ifdef __cplusplus
extern "C" {
#endif

int anynpu_stages(const uint8_t *bytes, uint32_t runs); /* Prints min, median and max ticks; 0 if the model fails. */
float anynpu_real(const anynpu_tensor *tensor, uint32_t index);

#ifdef __cplusplus
}
#endif

#endif
