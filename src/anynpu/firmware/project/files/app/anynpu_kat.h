/* The known-answer test: stored inputs, and the outputs that the verified model gave for them. */
#ifndef ANYNPU_KAT_H
#define ANYNPU_KAT_H

#include <stdint.h>

#include "anynpu_model.h"

#ifdef __cplusplus
extern "C" {
#endif

int anynpu_model_fits(void);                                 /* 1 if model and vectors are of the same network. */
void anynpu_load(const uint8_t *bytes);                      /* Fills all inputs, one after another. */
int anynpu_kat(void);                                        /* Prints a line per vector; 1 if all pass. */
/* A stored element as an integer; of a float its bits. */
int64_t anynpu_element(const anynpu_tensor *tensor, const void *data, uint32_t index);
void anynpu_put_element(const anynpu_tensor *tensor, const void *data, uint32_t index);

#ifdef __cplusplus
}
#endif

#endif
