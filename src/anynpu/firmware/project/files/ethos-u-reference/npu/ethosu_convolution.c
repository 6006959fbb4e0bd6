/* Convolutions, plain and depthwise, and the matrix product of the U85: a block of outputs at a time. */
#include "ethosu_reference.h"

#include <string.h>

#define SCALE_BYTES 10

/* Bias, scale and shift of a channel. */
typedef struct {
    int64_t bias;
    int64_t scale;
    int32_t places;
} channel;

static channel channel_of(const uint8_t *raw, int product, int wide)
{
    uint64_t low = 0;
    uint64_t high = 0;
    const int width = product != REF_U85 ? 5 : wide ? 6 : 4;
    const int scale_bytes = product != REF_U85 ? 4 : 8 - width;
    for (int i = 0; i < width; ++i) {
        low |= (uint64_t)raw[i] << (8 * i);
    }
    for (int i = 0; i < scale_bytes; ++i) {
        high |= (uint64_t)raw[width + i] << (8 * i);
    }
    if (product == REF_U85) {
        high &= wide ? 0x7FFFu : 0x7FFFFFFFu;
    }
    const channel found = {ref_signed(low, 8 * width), (int64_t)high, raw[product == REF_U85 ? 8 : 9] & 63};
    return found;
}

/* A convolution under way. */
typedef struct {
    ref_window window;
    ref_source source;
    ref_output out;
    ref_shape ofm;
    int depthwise;
    int global_scale;
    int wide;
    int32_t first; /* The channel of the block's first output, */
    int32_t step;  /* and from one output to the next. */
    int32_t count;
    const int16_t *weights;
    int32_t *patch;
    channel *channels;
    const uint8_t *scales;
} convolution;

/* The channels of a pixel of 8 or 16 bits, less the zero point. */
static void load_pixel(const ref_map *map, int32_t depth, int64_t pixel, int32_t *to)
{
    const int32_t run = map->bricks ? 16 : depth;
    /* Flips the sign bit and takes it back. */
    const int32_t sign = !map->is_signed ? 0 : map->bytes == 1 ? 0x80 : 0x8000;
    const int32_t less = sign + map->zero_point;
    for (int32_t first = 0; first < depth; first += run) {
        const uint8_t *from = map->memory + pixel + ref_map_channel(map, first);
        const int32_t count = depth - first < run ? depth - first : run;
        for (int32_t c = 0; c < count; ++c) {
            const uint32_t raw = map->bytes == 1 ? from[c] : (uint32_t)from[2 * c] | (uint32_t)from[2 * c + 1] << 8;
            *to++ = (int32_t)(raw ^ (uint32_t)sign) - less;
        }
    }
}

/* What the window sees at one position, less the zero point: [row][column][input]. */
static int gather(ref_machine *m, const convolution *v, int32_t y, int32_t x)
{
    const ref_window *w = &v->window;
    const ref_source *s = &v->source;
    int32_t *to = v->patch;
    for (int32_t row = 0; row < w->height; ++row) {
        const int64_t at_y = (int64_t)y * w->stride_y + (int64_t)row * w->dilation_y;
        const int32_t from_y = ref_place_of(at_y, w->top, s->shape.height, w->upscale);
        for (int32_t column = 0; column < w->width; ++column) {
            const int64_t at_x = (int64_t)x * w->stride_x + (int64_t)column * w->dilation_x;
            const int32_t from_x = ref_place_of(at_x, w->left, s->shape.width, w->upscale);
            if (from_y < 0 || from_x < 0) {
                memset(to, 0, (size_t)s->shape.depth * sizeof *to);
                to += s->shape.depth;
                continue;
            }
            if (s->chain == NULL && s->map.bytes < 4) {
                load_pixel(&s->map, s->shape.depth, ref_map_pixel(&s->map, from_y, from_x), to);
                to += s->shape.depth;
                continue;
            }
            for (int32_t c = 0; c < s->shape.depth; ++c) {
                const int64_t value = ref_source_value(s, from_y, from_x, c);
                if (value > INT32_MAX || value < INT32_MIN) {
                    return ref_fail(m, "an input has more than 32 bits");
                }
                *to++ = (int32_t)value;
            }
        }
    }
    return 1;
}

/* So many products of an input of that width and a weight of 9 bits have a sum of 32 bits at most. */
static int32_t safe_products(const ref_source *source)
{
    return source->chain != NULL || source->map.bytes == 4 ? 0 : source->map.bytes == 1 ? 1 << 14 : 1 << 7;
}

static int64_t dot(const int32_t *values, const int16_t *weights, int32_t count, int32_t safe)
{
    int64_t sum = 0;
    if (safe == 0) {
        for (int32_t i = 0; i < count; ++i) {
            sum += (int64_t)values[i] * weights[i];
        }
        return sum;
    }
    for (int32_t first = 0; first < count; first += safe) {
        const int32_t last = count - first < safe ? count : first + safe;
        int32_t part = 0;
        for (int32_t i = first; i < last; ++i) {
            part += values[i] * weights[i];
        }
        sum += part;
    }
    return sum;
}

static int64_t dot_depthwise(const int32_t *values, const int16_t *weights, int32_t elements, int32_t depth)
{
    int64_t sum = 0;
    for (int32_t i = 0; i < elements; ++i) {
        sum += (int64_t)values[(size_t)i * (size_t)depth] * weights[i];
    }
    return sum;
}

static void read_channels(const ref_machine *m, const convolution *v)
{
    const uint8_t *raw = v->scales + (size_t)SCALE_BYTES * (size_t)(v->first / v->step);
    for (int32_t i = 0; i < v->count; ++i) {
        v->channels[i] = channel_of(raw + (size_t)SCALE_BYTES * (size_t)i, m->product, v->wide);
        if (v->global_scale) {
            v->channels[i].scale = v->out.scale;
            v->channels[i].places = v->out.places;
        }
    }
}

/* All positions of one block of outputs. */
static void compute_block(ref_machine *m, const convolution *v)
{
    read_channels(m, v);
    const int32_t elements = v->window.height * v->window.width;
    const int32_t depth = v->source.shape.depth;
    const int32_t length = v->depthwise ? elements : elements * depth;
    const int32_t safe = safe_products(&v->source);
    for (int32_t y = 0; y < v->ofm.height; ++y) {
        for (int32_t x = 0; x < v->ofm.width; ++x) {
            if (!gather(m, v, y, x)) {
                return;
            }
            for (int32_t i = 0; i < v->count && m->fault == NULL; ++i) {
                const int32_t out = v->first + i * v->step;
                const channel *c = &v->channels[i];
                const int16_t *weights = v->weights + (size_t)i * (size_t)length;
                const int64_t sum = v->depthwise
                                        ? dot_depthwise(v->patch + (depth == 1 ? 0 : out), weights, elements, depth)
                                        : dot(v->patch, weights, length, safe);
                const int64_t bias = v->out.keeps ? 0 : c->bias; /* It is added with the scale, where sums leave. */
                ref_put(m, &v->out, y, x, out, ref_plus(sum, bias), c->scale, c->places);
            }
        }
    }
}

static int begin(ref_machine *m, convolution *v, int kind, int mode)
{
    memset(v, 0, sizeof *v);
    v->ofm = ref_ofm_shape(m);
    v->depthwise = kind == REF_DEPTHWISE;
    const int32_t depth = (int32_t)ref_brief(m, IFM_DEPTH_M1) + 1;
    if (!ref_window_of(m, v->ofm, &v->window) || ref_too_much(m, v->ofm, &v->window, v->depthwise ? 1 : depth) ||
        !ref_window_source(m, &v->window, depth, &v->source) || !ref_output_of(m, kind, mode, v->ofm, &v->out)) {
        return 0;
    }
    if (v->depthwise && depth != 1 && depth != v->ofm.depth) {
        return ref_fail(m, "a depthwise convolution has other inputs than outputs");
    }
    return 1;
}

/* Memory for the weights of a block and for a patch. */
static int16_t *room(ref_machine *m, convolution *v, const ref_order *order)
{
    uint64_t used = 0;
    const uint64_t elements = (uint64_t)v->window.height * (uint64_t)v->window.width;
    const uint64_t outs = (uint64_t)(order->block < order->ofm_depth ? order->block : order->ofm_depth);
    v->patch = ref_scratch(m, &used, elements * (uint64_t)v->source.shape.depth * sizeof(int32_t));
    int16_t *weights = ref_scratch(m, &used, elements * (uint64_t)order->ifm_depth * outs * sizeof(int16_t));
    v->channels = ref_scratch(m, &used, outs * sizeof *v->channels);
    v->weights = weights;
    return m->fault == NULL ? weights : NULL;
}

static ref_order order_of(ref_machine *m, const convolution *v)
{
    ref_order order;
    memset(&order, 0, sizeof order);
    order.height = v->window.height;
    order.width = v->window.width;
    order.ifm_depth = v->depthwise ? 1 : v->source.shape.depth;
    order.ofm_depth = v->ofm.depth;
    order.depthwise = v->depthwise;
    order.part_kernel = v->window.part_kernel && !v->depthwise;
    order.block = (int32_t)ref_brief(m, OFM_BLK_DEPTH_M1) + 1;
    order.ifm_bits = 8 << (ref_brief(m, IFM_PRECISION) >> 2 & 3u);
    order.stride_y = v->window.stride_y;
    order.stride_x = v->window.stride_x;
    order.dilation_y = v->window.dilation_y;
    order.dilation_x = v->window.dilation_x;
    order.streams = 1;
    return order;
}

static void convolution55(ref_machine *m, convolution *v)
{
    static const int registers[2][4] = {{WEIGHT_BASE, WEIGHT_LENGTH, SCALE_BASE, SCALE_LENGTH},
                                        {WEIGHT1_BASE, WEIGHT1_LENGTH, SCALE1_BASE, SCALE1_LENGTH}};
    const int32_t cores = m->cores == 1 || v->ofm.depth == 1 ? 1 : 2;
    const ref_order whole = order_of(m, v);
    ref_weights weights;
    for (int32_t core = 0; core < cores && m->fault == NULL; ++core) {
        ref_order order = whole;
        order.ifm_block = order.part_kernel || order.ifm_bits == 16 ? 16 : 32;
        order.micro = m->macs == 32 ? 4 : 8;
        order.ofm_depth = (whole.ofm_depth - core + cores - 1) / cores;
        order.block = (whole.block + m->cores - 1 - core) / m->cores;
        order.block = order.block < 1 ? 1 : order.block;
        const int64_t length = ref_address(m, registers[core][1]);
        const int64_t scale_length = ref_address(m, registers[core][3]);
        const uint8_t *raw = ref_bytes(m, ref_brief(m, WEIGHT_REGION), ref_address(m, registers[core][0]), length);
        v->scales = ref_bytes(m, ref_brief(m, SCALE_REGION), ref_address(m, registers[core][2]), scale_length);
        int16_t *to = room(m, v, &order);
        if (m->fault != NULL || scale_length < (int64_t)SCALE_BYTES * order.ofm_depth) {
            (void)ref_fail(m, "the scales are cut off");
            return;
        }
        ref_weights_start(&weights, raw, (uint32_t)length);
        v->step = cores;
        for (int32_t first = 0; first < order.ofm_depth && m->fault == NULL; first += order.block) {
            v->first = core + first * cores;
            v->count = order.block < order.ofm_depth - first ? order.block : order.ofm_depth - first;
            /* The output may lie where the weights were: the last of them are read before the first value is stored. */
            const int is_last = first + v->count == order.ofm_depth;
            if (ref_block55(m, &weights, &order, first, to) && (!is_last || ref_weights_end(m, &weights))) {
                compute_block(m, v);
            }
        }
    }
}

/* The order of the U85 depends on the size of the NPU, too. */
static int order85(ref_machine *m, ref_order *order)
{
    static const int32_t micro_blocks[6] = {1, 2, 4, 4, 8, 16};
    const uint32_t block = ref_brief(m, ACC_FORMAT) >> 8 & 7u;
    order->sparse = (ref_brief(m, WEIGHT_FORMAT) >> 4 & 1u) != 0u;
    order->micro = m->macs / 8 / micro_blocks[block > 5u ? 5u : block];
    order->streams = m->macs <= 256 ? 1 : m->macs == 512 ? 2 : 4;
    if (m->macs < 128 || m->macs > 2048 || order->micro < order->streams) {
        return ref_fail(m, "there is no Ethos-U85 of that size");
    }
    if (order->part_kernel) {
        order->ifm_block = 16;
    } else if (order->ifm_bits == 32 || (m->macs <= 256 && order->micro == 16 && !order->sparse)) {
        order->ifm_block = 32;
    } else {
        order->ifm_block = order->sparse && order->ifm_bits == 8 ? 128 : 64;
    }
    order->ifm_micro = order->part_kernel && order->ifm_bits == 16 && !order->sparse ? 8 : order->ifm_block;
    order->ifm_micro = order->depthwise ? 1 : order->ifm_micro;
    order->rounding = order->part_kernel ? (order->ifm_bits == 16 || order->sparse ? 10 : 5) : 1;
    order->rounding = order->depthwise ? 10 : order->rounding;
    if (order->depthwise && (order->ifm_bits == 16 || m->macs > 256)) {
        order->pause = m->macs <= 512 ? 2 : 6;
    }
    return m->fault == NULL;
}

static void start_streams85(ref_machine *m, const ref_order *order, ref_weights *weights)
{
    static const int bases[REF_STREAMS] = {WEIGHT_BASE, WEIGHT1_BASE, SCALE1_BASE, WEIGHT3_BASE};
    const int fast = (ref_brief(m, WEIGHT_FORMAT) & 1u) != 0u;
    for (int32_t i = 0; i < order->streams && m->fault == NULL; ++i) {
        const int base = bases[fast ? 0 : i];
        const int64_t length = ref_address(m, base + 1);
        const uint8_t *raw = ref_bytes(m, ref_brief(m, WEIGHT_REGION), length != 0 ? ref_address(m, base) : 0, length);
        if (raw != NULL && fast) {
            ref_weights_fast(m, &weights[i], raw, (uint32_t)length);
            weights[i].part = (uint32_t)i;
            weights[i].parts = (uint32_t)order->streams;
            weights[i].part_weights = (uint64_t)(order->micro * order->ifm_micro * order->rounding / order->streams);
        } else if (raw != NULL) {
            ref_weights_start(&weights[i], raw, (uint32_t)length);
        }
    }
}

static void convolution85(ref_machine *m, convolution *v)
{
    ref_order order = order_of(m, v);
    ref_weights weights[REF_STREAMS];
    if (!order85(m, &order)) {
        return;
    }
    start_streams85(m, &order, weights);
    const int64_t scale_length = ref_address(m, SCALE_LENGTH);
    v->scales = ref_bytes(m, ref_brief(m, SCALE_REGION), ref_address(m, SCALE_BASE), scale_length);
    v->wide = (ref_brief(m, ACC_FORMAT) & 3u) != 0u;
    v->global_scale = (ref_brief(m, OFM_PRECISION) >> 8 & 1u) != 0u;
    v->step = 1;
    int16_t *to = room(m, v, &order);
    if (m->fault != NULL || scale_length < (int64_t)SCALE_BYTES * order.ofm_depth) {
        (void)ref_fail(m, "the scales are cut off");
        return;
    }
    for (int32_t first = 0; first < order.ofm_depth && m->fault == NULL; first += order.block) {
        v->first = first;
        v->count = order.block < order.ofm_depth - first ? order.block : order.ofm_depth - first;
        if (!ref_block85(m, weights, &order, first, to)) {
            return;
        }
        /* The output may lie where the weights were: the last of them are read before the first value is stored. */
        for (int32_t i = 0; i < order.streams && first + v->count == order.ofm_depth; ++i) {
            (void)ref_weights_end(m, &weights[i]);
        }
        if (m->fault == NULL) {
            compute_block(m, v);
        }
    }
}

/* Rows of the input times rows of the second input: a matrix product whose weights are not constant. */
static void product85(ref_machine *m, convolution *v)
{
    ref_source second;
    const int32_t depth = v->source.shape.depth;
    const ref_shape matrix = {1, v->ofm.depth, depth};
    uint64_t used = 0;
    v->window.height = v->window.width = 1;
    v->patch = ref_scratch(m, &used, (uint64_t)depth * sizeof(int32_t));
    if (v->patch == NULL || !ref_source_of(m, 1, matrix, &second)) {
        return;
    }
    for (int32_t y = 0; y < v->ofm.height; ++y) {
        for (int32_t x = 0; x < v->ofm.width && gather(m, v, y, x); ++x) {
            for (int32_t out = 0; out < v->ofm.depth; ++out) {
                int64_t sum = 0;
                for (int32_t c = 0; c < depth; ++c) {
                    sum = ref_plus(sum, ref_times(v->patch[c], ref_source_value(&second, 0, out, c)));
                }
                ref_put(m, &v->out, y, x, out, sum, v->out.scale, v->out.places);
            }
        }
    }
}

void ref_convolution(ref_machine *m, int kind, int mode)
{
    convolution v;
    if (!begin(m, &v, kind, mode)) {
        return;
    }
    if (m->product != REF_U85) {
        convolution55(m, &v);
    } else if (kind == REF_CONV && (mode & 1) != 0) {
        product85(m, &v);
    } else {
        convolution85(m, &v);
    }
}
