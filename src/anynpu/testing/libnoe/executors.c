/* What the fake computes: synthetic models whose answers are easy to predict, and real ones as generated C in a plug-in.
 *
 * A graph names its executor in its own bytes: "anynpu-fake-noe:NAME" with a zero after it, where NAME is mix, clip-text,
 * clip-image, yolo, or the path of a plug-in. A graph without a name is computed by mix.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

#include "graph.h"

#define MARK "anynpu-fake-noe:"

/* Every output byte depends on one byte of the inputs and on its place. */
static int mix(const graph_t *graph, uint8_t *const *in, uint8_t *const *out)
{
    for (uint32_t o = 0; o < graph->counts[NOE_OUTPUT]; o++) {
        uint32_t from = graph->counts[NOE_INPUT] ? o % graph->counts[NOE_INPUT] : 0;
        uint32_t length = graph->counts[NOE_INPUT] ? graph->tensors[NOE_INPUT][from].size : 0;
        for (uint32_t j = 0; j < graph->tensors[NOE_OUTPUT][o].size; j++)
            out[o][j] = (uint8_t)((length ? in[from][j % length] * 31u : 0) + j * 7u + o + 3u);
    }
    return 0;
}

/* 77 tokens to 512 values of 8 bits: sums of products modulo 2^32, brought into -125..125. */
static int clip_text(const graph_t *graph, uint8_t *const *in, uint8_t *const *out)
{
    const int32_t *tokens = (const int32_t *)in[0];
    uint32_t count = graph->tensors[NOE_INPUT][0].size / 4, width = graph->tensors[NOE_OUTPUT][0].size;
    for (uint32_t j = 0; j < width; j++) {
        uint32_t sum = 0;
        for (uint32_t i = 0; i < count; i++)
            sum += ((uint32_t)tokens[i] + 1u) * (i * 31u + j * 17u + 1u);
        out[0][j] = (uint8_t)(int8_t)((int32_t)((sum >> 3) % 251u) - 125);
    }
    return 0;
}

/* Pixels to values: each value is the saturated sum, over 32, of the pixels whose number is its own modulo the width. */
static int clip_image(const graph_t *graph, uint8_t *const *in, uint8_t *const *out)
{
    const int8_t *pixels = (const int8_t *)in[0];
    uint32_t count = graph->tensors[NOE_INPUT][0].size, width = graph->tensors[NOE_OUTPUT][0].size;
    for (uint32_t j = 0; j < width; j++) {
        int32_t sum = 0;
        for (uint32_t i = j; i < count; i += width)
            sum += pixels[i];
        sum >>= 5;
        out[0][j] = (uint8_t)(int8_t)(sum > 127 ? 127 : sum < -128 ? -128 : sum);
    }
    return 0;
}

/* The half-precision pattern of a number of at most 11 significant bits: all that yolo writes are such. */
static uint16_t half(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return value == 0 ? 0 : (uint16_t)((((bits >> 23) - 112u) << 10) | ((bits >> 13) & 0x3ffu));
}

/* One candidate a cell of strides 8, 16 and 32: a square of four cells around its centre. The red of the centre's pixel
 * names the class, its green over 256 is the score; planes are 3 x side x side, the output is (4 + classes) x cells. */
static int yolo(const graph_t *graph, uint8_t *const *in, uint8_t *const *out)
{
    uint32_t side = 1, pixels = graph->tensors[NOE_INPUT][0].size / 3;
    while (side * side < pixels)
        side++;
    uint32_t cells = 0, cell = 0;
    for (uint32_t stride = 8; stride <= 32; stride *= 2)
        cells += (side / stride) * (side / stride);
    uint32_t rows = graph->tensors[NOE_OUTPUT][0].size / 2 / cells;
    uint16_t *values = (uint16_t *)out[0];
    memset(values, 0, graph->tensors[NOE_OUTPUT][0].size);
    for (uint32_t stride = 8; stride <= 32; stride *= 2)
        for (uint32_t y = 0; y < side / stride; y++)
            for (uint32_t x = 0; x < side / stride; x++, cell++) {
                uint32_t cx = x * stride + stride / 2, cy = y * stride + stride / 2, at = cy * side + cx;
                values[cell] = half((float)cx);
                values[cells + cell] = half((float)cy);
                values[2 * cells + cell] = values[3 * cells + cell] = half((float)(4 * stride));
                values[(4 + in[0][at] % (rows - 4)) * cells + cell] = half((float)in[0][pixels + at] / 256.0f);
            }
    return 0;
}

/* The head of anynpu_tensor, as generated C declares it. */
typedef struct { const char *name; void *data; uint32_t bytes; } plugin_tensor_t;
typedef const plugin_tensor_t *(*plugin_lookup_t)(int);

static int plugin(const graph_t *graph, uint8_t *const *in, uint8_t *const *out)
{
    static const char *const lookups[2] = {"anynpu_input", "anynpu_output"};
    int (*invoke)(void) = (int (*)(void))dlsym(graph->plugin, "anynpu_invoke");
    for (int kind = 0; kind < 2; kind++) {
        plugin_lookup_t lookup = (plugin_lookup_t)dlsym(graph->plugin, lookups[kind]);
        for (uint32_t i = 0; i < graph->counts[kind]; i++) {
            const plugin_tensor_t *tensor = lookup ? lookup((int)i) : 0;
            if (!invoke || !tensor || tensor->bytes != graph->tensors[kind][i].size)
                return -1;
            if (kind == NOE_INPUT)
                memcpy(tensor->data, in[i], tensor->bytes);
            else
                memcpy(out[i], tensor->data, tensor->bytes);
        }
        if (kind == NOE_INPUT && invoke() != 0)
            return -1;
    }
    return 0;
}

int executor_find(graph_t *graph)
{
    static const struct { const char *name; executor_t run; } known[] = {
        {"mix", mix}, {"clip-text", clip_text}, {"clip-image", clip_image}, {"yolo", yolo}};
    const char *mark = memmem(graph->buffer, graph->bytes, MARK, sizeof MARK - 1);
    const char *name = mark ? mark + sizeof MARK - 1 : "mix";
    if (mark && !memchr(name, 0, graph->bytes - (size_t)(name - (const char *)graph->buffer)))
        return -1;
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (strcmp(name, known[i].name) == 0) {
            graph->execute = known[i].run;
            return 0;
        }
    graph->plugin = dlopen(name, RTLD_NOW | RTLD_LOCAL);
    if (!graph->plugin) {
        fprintf(stderr, "fake libnoe: %s\n", dlerror());
        return -1;
    }
    int (*init)(void) = (int (*)(void))dlsym(graph->plugin, "anynpu_init");
    graph->execute = plugin;
    return init && init() == 0 ? 0 : -1;
}

void executor_drop(graph_t *graph)
{
    if (graph->plugin)
        dlclose(graph->plugin);
    graph->plugin = 0;
}
