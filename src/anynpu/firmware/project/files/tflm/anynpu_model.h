/* The model: a compiled TFLite file that TFLite-Micro runs with the NPU. Generated; do not edit. */
#ifndef ANYNPU_MODEL_H
#define ANYNPU_MODEL_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define ANYNPU_MODEL_NAME @NAME@
#define ANYNPU_MODEL_FINGERPRINT @FINGERPRINT@
#define ANYNPU_MODEL_MACS @MACS@
/* @HOW@. */
#define ANYNPU_ARENA_BYTES @ARENA@
#define ANYNPU_NUM_INPUTS @INPUTS@
#define ANYNPU_NUM_OUTPUTS @OUTPUTS@
#define ANYNPU_MAX_RANK @RANK@

@TENSORS@

typedef enum { @TYPES@ } anynpu_type;

/* real = (stored - zero_point) * scale; scale is 0 where nothing is quantised. */
typedef struct {
    const char *name;
    void *data;
    uint32_t bytes;
    uint32_t elements;
    anynpu_type type;
    uint8_t rank;
    int32_t shape[ANYNPU_MAX_RANK];
    float scale;
    int32_t zero_point;
} anynpu_tensor;

/* 0 on success; 1 resolver, 2 schema version, 3 arena too small or operator refused, 4 other tensors than promised. */
int anynpu_init(void);

/* The i-th input and output, or a null pointer. */
const anynpu_tensor *anynpu_input(int i);
const anynpu_tensor *anynpu_output(int i);

/* Runs the model once; 0 on success. What the inputs hold afterwards is undefined. */
int anynpu_invoke(void);

/* What TFLite-Micro took of the arena; valid after anynpu_init. */
#define ANYNPU_COUNTS_ARENA 1
uint32_t anynpu_arena_used(void);

#ifdef __cplusplus
}
#endif

#endif
