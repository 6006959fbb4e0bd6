/* How long each stage of an inference takes: initialisation, memory I/O, inference, post-processing. */
#ifndef ANYNPU_STAGES_H
#define ANYNPU_STAGES_H

#include <stdint.h>

#include "anynpu_model.h"

#ifdef __cplusplus
extern "C" {
#endif

int anynpu_stages(const uint8_t *bytes, uint32_t runs); /* Prints min, median and max ticks; 0 if the model fails. */
#ifdef ANYNPU_LAYERS
/* Prints the ticks that each tensor took; 0 if the model fails. The model calls anynpu_layer_done after each. */
int anynpu_layers(const uint8_t *bytes);
void anynpu_layer_done(int32_t tensor, const void *data, uint32_t bytes);
#endif
float anynpu_real(const anynpu_tensor *tensor, uint32_t index);

#ifdef __cplusplus
}
#endif

#endif
