/* Weights put back into their places. The NPU wants them in the order in which it multiplies: blocks of outputs first,
   then blocks of inputs, parts of the kernel, micro-blocks, and single channels last. What is padding must be zero. */
#include "ethosu_reference.h"

#include <string.h>

typedef struct {
    const ref_order *order;
    ref_weights *weights;
    int16_t *to;
    int32_t first; /* The outputs of the block: from here, */
    int32_t count; /* so many. */
} block;

static int32_t smaller(int32_t a, int32_t b)
{
    return a < b ? a : b;
}

/* Takes the next weight for a place; places outside of the kernel or the channels are padding. */
static int take(ref_machine *m, const block *b, int32_t row, int32_t column, int32_t in, int32_t out)
{
    const ref_order *order = b->order;
    int32_t value = 0;
    if (!ref_weights_next(m, b->weights, &value)) {
        return ref_fail(m, "the weights are cut off");
    }
    if (row < 0 || in >= order->ifm_depth || out >= order->ofm_depth) {
        return value == 0 ? 1 : ref_fail(m, "the weights are damaged: the padding between them is not zero");
    }
    if (out < b->first + b->count) { /* Otherwise the next block has it again. */
        const size_t place = ((size_t)(out - b->first) * (size_t)order->height + (size_t)row) * (size_t)order->width;
        b->to[(place + (size_t)column) * (size_t)order->ifm_depth + (size_t)in] = (int16_t)value;
    }
    return 1;
}

static int take_padding(ref_machine *m, const block *b, int32_t count)
{
    for (int32_t i = 0; i < count; ++i) {
        if (!take(m, b, -1, 0, 0, 0)) {
            return 0;
        }
    }
    return 1;
}

typedef struct {
    int32_t y;
    int32_t x;
    int32_t height;
    int32_t width;
    int32_t ifm;
} part;

/* One kernel element of one micro-block of outputs, and of the micro-blocks of inputs from `from` up to `to`. */
static int element55(ref_machine *m, const block *b, const part *p, int32_t element, int32_t ofm, int32_t from,
                     int32_t to)
{
    const ref_order *order = b->order;
    const int32_t row = element / p->width;
    const int32_t place = row < p->height ? p->y + row : -1;
    const int32_t lanes = order->depthwise ? 1 : 8;
    for (int32_t in = from; in < to; in += 8) {
        for (int32_t out = 0; out < order->micro; ++out) {
            for (int32_t lane = 0; lane < lanes; ++lane) {
                if (!take(m, b, place, p->x + element % p->width, p->ifm + in + lane, b->first + ofm + out)) {
                    return 0;
                }
            }
        }
    }
    return 1;
}

static int part55(ref_machine *m, const block *b, const part *p)
{
    const ref_order *order = b->order;
    const int32_t step = order->part_kernel && order->ifm_bits == 16 ? 2 : 4;
    int32_t elements = p->height * p->width;
    int32_t ins = order->ifm_block;
    if (order->depthwise || order->part_kernel) {
        elements = (elements + step - 1) / step * step;
    }
    if (order->part_kernel) {
        ins = smaller(order->ifm_block, order->ifm_depth - p->ifm);
    }
    /* Part of the kernel first: inputs outside of the elements; depth first: inside. */
    const int32_t outer = order->part_kernel ? ins : 1;
    for (int32_t in = 0; in < outer; in += 8) {
        const int32_t to = order->part_kernel || order->depthwise ? in + 1 : ins;
        for (int32_t ofm = 0; ofm < b->count; ofm += order->micro) {
            for (int32_t element = 0; element < elements; ++element) {
                if (!element55(m, b, p, element, ofm, in, to)) {
                    return 0;
                }
            }
        }
    }
    return 1;
}

static void clear_block(const block *b)
{
    const ref_order *order = b->order;
    const size_t kernel = (size_t)order->height * (size_t)order->width * (size_t)order->ifm_depth;
    memset(b->to, 0, kernel * (size_t)b->count * sizeof *b->to);
}

int ref_block55(ref_machine *m, ref_weights *w, const ref_order *order, int32_t first, int16_t *to)
{
    const block b = {order, w, to, first, smaller(order->block, order->ofm_depth - first)};
    const int32_t down = 8 / order->dilation_y;
    const int32_t across = 8 / order->dilation_x;
    clear_block(&b);
    for (int32_t ifm = 0; ifm < order->ifm_depth; ifm += order->ifm_block) {
        for (int32_t y = 0; y < order->height; y += down) {
            for (int32_t x = 0; x < order->width; x += across) {
                const part p = {y, x, smaller(order->height - y, down), smaller(order->width - x, across), ifm};
                if (!part55(m, &b, &p)) {
                    return 0;
                }
            }
        }
    }
    return 1;
}

/* One kernel element of one pair of micro-blocks, as far as stream `number` holds it. */
static int element85(ref_machine *m, const block *b, int32_t number, int32_t row, int32_t column, int32_t ifm,
                     int32_t ofm)
{
    const ref_order *order = b->order;
    const int32_t step = order->depthwise ? 1 : order->sparse ? 16 : 8;
    for (int32_t inner = 0; inner < order->ifm_micro; inner += step) {
        for (int32_t group = 4 * number; group < order->micro; group += 4 * order->streams) {
            for (int32_t lane = 0; lane < 4; ++lane) {
                for (int32_t channel = 0; channel < step; ++channel) {
                    if (!take(m, b, row, column, ifm + inner + channel, b->first + ofm + group + lane)) {
                        return 0;
                    }
                }
            }
        }
    }
    return 1;
}

typedef struct {
    int32_t number;
    int32_t ofm;
    int32_t left; /* Elements still to come, with those that only round up. */
} walk;

static int row85(ref_machine *m, const block *b, const part *p, walk *w, int32_t row, int32_t phase, int backwards)
{
    const ref_order *order = b->order;
    const int32_t stride = order->part_kernel || order->depthwise ? order->stride_x : 1;
    const int32_t count = phase < p->width ? (p->width - 1 - phase) / stride + 1 : 0;
    for (int32_t i = 0; i < count; ++i) {
        const int32_t column = phase + (backwards ? count - 1 - i : i) * stride;
        --w->left;
        if (!element85(m, b, w->number, p->y + row, p->x + column, p->ifm, w->ofm)) {
            return 0;
        }
        if (order->depthwise && w->left % order->rounding == 0 &&
            !take_padding(m, b, order->pause * (order->micro / order->streams))) {
            return 0;
        }
    }
    return 1;
}

/* One part of the kernel and one pair of micro-blocks: phases of the stride, and in each the rows to and fro. */
static int part85(ref_machine *m, const block *b, const part *p, int32_t number, int32_t ofm)
{
    const ref_order *order = b->order;
    const int by_phase = order->part_kernel || order->depthwise;
    const int32_t stride_y = by_phase ? order->stride_y : 1;
    const int32_t stride_x = by_phase ? order->stride_x : 1;
    const int32_t elements = p->height * p->width;
    walk w = {number, ofm, (elements + order->rounding - 1) / order->rounding * order->rounding};
    for (int32_t phase_y = 0; phase_y < stride_y; ++phase_y) {
        for (int32_t phase_x = 0; phase_x < stride_x; ++phase_x) {
            int backwards = 0;
            for (int32_t row = phase_y; row < p->height; row += stride_y) {
                if (!row85(m, b, p, &w, row, phase_x, backwards)) {
                    return 0;
                }
                backwards = !backwards;
            }
        }
    }
    if (w.left > 0) {
        return take_padding(m, b, (w.left + order->pause) * order->ifm_micro * (order->micro / order->streams));
    }
    return 1;
}

static int inputs85(ref_machine *m, block *b, ref_weights *weights, int32_t ifm, int32_t number)
{
    const ref_order *order = b->order;
    const int32_t down = 8 / order->dilation_y;
    const int32_t across = 8 / order->dilation_x;
    const int32_t ins = order->depthwise ? 1 : smaller(order->ifm_block, order->ifm_depth - ifm);
    b->weights = &weights[number];
    for (int32_t x = 0; x < order->width; x += across) {
        for (int32_t y = 0; y < order->height; y += down) {
            for (int32_t in = 0; in < ins; in += order->ifm_micro) {
                const part p = {y, x, smaller(order->height - y, down), smaller(order->width - x, across), ifm + in};
                for (int32_t ofm = 0; ofm < b->count; ofm += order->micro) {
                    if (!part85(m, b, &p, number, ofm)) {
                        return 0;
                    }
                }
            }
        }
    }
    return 1;
}

int ref_block85(ref_machine *m, ref_weights *w, const ref_order *order, int32_t first, int16_t *to)
{
    block b = {order, w, to, first, smaller(order->block, order->ofm_depth - first)};
    const int32_t blocks = (order->ifm_depth + order->ifm_block - 1) / order->ifm_block;
    const int backwards = first / order->block % 2; /* Every second block walks the inputs backwards. */
    clear_block(&b);
    for (int32_t number = 0; number < order->streams; ++number) {
        for (int32_t i = 0; i < blocks; ++i) {
            const int32_t ifm = (backwards ? blocks - 1 - i : i) * order->ifm_block;
            if (!inputs85(m, &b, w, ifm, number)) {
                return 0;
            }
        }
    }
    return 1;
}
