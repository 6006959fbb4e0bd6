#include "anynpu_stages.h"

#include <string.h>

#include "anynpu_kat.h"
#include "anynpu_protocol.h"
#include "anynpu_text.h"
#include "anynpu_vectors.h"
#include "anynpu_board.h"

#define STAGES 4

static const char *const names[STAGES] = {"init", "io", "infer", "post"};
static uint32_t samples[STAGES][ANYNPU_STAGE_RUNS];
static uint8_t taken[KAT_OUTPUT_BYTES];
/* Written and never read: keeps the compiler from dropping the post-processing that is measured. */
static volatile uint32_t best;

static float stored_real(const anynpu_tensor *tensor, const uint8_t *data, uint32_t index)
{
    float real;
    if (tensor->type == ANYNPU_INT8) { /* The usual type, without a call. */
        const int value = data[index] < 128u ? (int)data[index] : (int)data[index] - 256;
        return (float)(value - tensor->zero_point) * tensor->scale;
    }
    if (tensor->type == ANYNPU_FLOAT32) {
        const uint32_t bits = (uint32_t)anynpu_element(tensor, data, index);
        memcpy(&real, &bits, sizeof real);
        return real;
    }
    return (float)(anynpu_element(tensor, data, index) - tensor->zero_point) * tensor->scale;
}

float anynpu_real(const anynpu_tensor *tensor, uint32_t index)
{
    return stored_real(tensor, (const uint8_t *)tensor->data, index);
}

static uint32_t since(uint64_t *start)
{
    const uint64_t now = anynpu_board_ticks();
    const uint64_t passed = now - *start;
    *start = now;
    return passed > UINT32_MAX ? UINT32_MAX : (uint32_t)passed;
}

static void take_outputs(void)
{
    uint8_t *to = taken;
    for (int i = 0; i < ANYNPU_NUM_OUTPUTS; ++i) {
        memcpy(to, anynpu_output(i)->data, anynpu_output(i)->bytes);
        to += anynpu_output(i)->bytes;
    }
}

/* Turns every output into real numbers and finds its largest: the least that any use of a model does. */
static void post_process(void)
{
    const uint8_t *from = taken;
    for (int i = 0; i < ANYNPU_NUM_OUTPUTS; ++i) {
        const anynpu_tensor *tensor = anynpu_output(i);
        float largest = stored_real(tensor, from, 0);
        uint32_t where = 0;
        for (uint32_t j = 1; j < tensor->elements; ++j) {
            const float real = stored_real(tensor, from, j);
            if (real > largest) {
                largest = real;
                where = j;
            }
        }
        best = where;
        from += tensor->bytes;
    }
}

static int measure(const uint8_t *bytes, uint32_t run)
{
    uint64_t start = anynpu_board_ticks();
    const int ready = anynpu_init();
    samples[0][run] = since(&start);
    anynpu_load(bytes);
    samples[1][run] = since(&start);
    const int status = anynpu_invoke();
    samples[2][run] = since(&start);
    take_outputs();
    const uint32_t out = since(&start);
    samples[1][run] = samples[1][run] > UINT32_MAX - out ? UINT32_MAX : samples[1][run] + out;
    post_process();
    samples[3][run] = since(&start);
    return ready == 0 && status == 0;
}

static void sort(uint32_t *values, uint32_t count)
{
    for (uint32_t i = 1; i < count; ++i) {
        const uint32_t value = values[i];
        uint32_t at = i;
        while (at > 0u && values[at - 1u] > value) {
            values[at] = values[at - 1u];
            --at;
        }
        values[at] = value;
    }
}

static void put_stage(int stage, uint32_t runs)
{
    uint32_t *values = samples[stage];
    sort(values, runs);
    anynpu_put("a-stage-");
    anynpu_put(names[stage]);
    anynpu_put("-[");
    anynpu_put_unsigned(values[0]);
    anynpu_put(",");
    anynpu_put_unsigned(((uint64_t)values[(runs - 1u) / 2u] + values[runs / 2u]) / 2u);
    anynpu_put(",");
    anynpu_put_unsigned(values[runs - 1u]);
    anynpu_put_line("]");
}

int anynpu_stages(const uint8_t *bytes, uint32_t runs)
{
    for (uint32_t i = 0; i < runs; ++i) {
        if (!measure(bytes, i)) {
            return 0;
        }
    }
    for (int i = 0; i < STAGES; ++i) {
        put_stage(i, runs);
    }
    return 1;
}

#ifdef ANYNPU_LAYERS
#define MOST_TENSORS 4096u
#define HOOK_RUNS 16u

/* When each tensor was complete, in the order in which the model makes them. */
static struct {
    int32_t tensor;
    uint64_t at;
} made[MOST_TENSORS];
static uint32_t count;

void anynpu_layer_done(int32_t tensor, const void *data, uint32_t bytes)
{
    (void)data;
    (void)bytes;
    if (count < MOST_TENSORS) {
        made[count].tensor = tensor;
        made[count].at = anynpu_board_ticks();
    }
    ++count;
}

/* What this costs by itself. */
static uint64_t hook_ticks(void)
{
    count = 0;
    for (uint32_t i = 0; i <= HOOK_RUNS; ++i) {
        anynpu_layer_done(0, NULL, 0);
    }
    return (made[HOOK_RUNS].at - made[0].at) / HOOK_RUNS;
}

int anynpu_layers(const uint8_t *bytes)
{
    const uint64_t hook = hook_ticks();
    anynpu_load(bytes);
    count = 0;
    uint64_t start = anynpu_board_ticks();
    if (anynpu_invoke() != 0 || count > MOST_TENSORS) {
        return 0;
    }
    for (uint32_t i = 0; i < count; ++i) {
        const uint64_t passed = made[i].at - start;
        anynpu_put("a-layer-");
        anynpu_put_unsigned(i);
        anynpu_put("-[");
        anynpu_put_signed(made[i].tensor);
        anynpu_put(",");
        anynpu_put_unsigned(passed > hook ? passed - hook : 0u);
        anynpu_put_line("]");
        start = made[i].at;
    }
    return 1;
}
#endif
