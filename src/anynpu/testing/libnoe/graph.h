/* A graph as the fake reads it from the ELF file inside a .cix, and what computes its outputs. */
#ifndef ANYNPU_FAKE_GRAPH_H
#define ANYNPU_FAKE_GRAPH_H

#include <stddef.h>

#include "noe.h"

#define MOST_TENSORS 16

typedef struct graph graph_t;
typedef int (*executor_t)(const graph_t *graph, uint8_t *const *in, uint8_t *const *out);

struct graph {
    const uint8_t *buffer; /* the caller's: it must stay as it is until the graph is unloaded */
    uint32_t bytes, checksum, build_version, device;
    bool lacks_private_data; /* a subgraph gives its tasks no data of their own */
    uint32_t counts[2];
    tensor_desc_t tensors[2][MOST_TENSORS];
    executor_t execute;
    void *plugin;
};

uint32_t graph_read(graph_t *graph, const uint8_t *buffer, uint32_t bytes);
uint32_t graph_checksum(const graph_t *graph);
int executor_find(graph_t *graph);
void executor_drop(graph_t *graph);

#endif
