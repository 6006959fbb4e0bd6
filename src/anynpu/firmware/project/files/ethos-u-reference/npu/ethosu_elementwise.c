/* Element-wise operations. */
#include "ethosu_reference.h"

#include <string.h>

enum { MUL, ADD, SUB, MINIMUM, MAXIMUM, LRELU, ABS, CLZ, SHR, SHL, LSR, DIV };
enum { EQUAL = 16, NOT_EQUAL, GREATER_EQUAL, GREATER, AND = 33, OR, XOR, NOT, AND_NOT = 42 };

static int64_t magnitude(int64_t value)
{
    return value < 0 ? ref_times(value, -1) : value;
}

static int64_t leading_zeros(int64_t value)
{
    const uint32_t bits = (uint32_t)((uint64_t)value & 0xFFFFFFFFu);
    int64_t count = 0;
    while (count < 32 && (bits >> (31 - count) & 1u) == 0u) {
        ++count;
    }
    return count;
}

static int32_t places_of(int64_t value)
{
    return value < 0 ? 0 : value > 62 ? 62 : (int32_t)value;
}

static int64_t low_word(int64_t value)
{
    return ref_signed((uint64_t)value, 32);
}

/* The scales and roundings of an operation. */
typedef struct {
    int mode;
    int is85;
    int32_t bytes; /* Of an element of the first input. */
    int64_t a;
    int64_t b;
    int32_t a_places;
    int32_t b_places;
    int32_t a_up;
    int32_t b_up;
    int a_rounding;
    int b_rounding;
    int scaled; /* U55: which operand is scaled before a sum; 0 for both. */
    int rounding;
} arithmetic;

static int64_t sum55(const arithmetic *op, int64_t first, int64_t second)
{
    if (op->scaled == 0) {
        first = ref_times(first, op->a);
        second = ref_times(second, op->b);
    } else {
        const int32_t up = op->bytes == 1 ? 20 : 15;
        int64_t *scaled = op->scaled == 2 ? &second : &first;
        int64_t *other = op->scaled == 2 ? &first : &second;
        *scaled = ref_rescale(ref_shift_left(*scaled, up), op->a, op->a_places + up, op->a_rounding);
        *other = ref_shift_left(*other, up - 1);
    }
    return ref_plus(first, op->mode == SUB ? ref_times(second, -1) : second);
}

static int64_t divided(int64_t first, int64_t second)
{
    if (second == 0) {
        return 0;
    }
    const int64_t quotient = (int64_t)((uint64_t)magnitude(first) / (uint64_t)magnitude(second));
    return (first < 0) != (second < 0) ? ref_times(quotient, -1) : quotient;
}

static int64_t combined85(ref_machine *m, const arithmetic *op, int64_t first, int64_t second)
{
    switch (op->mode) {
    case LSR:
        return (int64_t)(((uint64_t)first & 0xFFFFFFFFu) >> places_of(second));
    case DIV:
        return divided(first, second);
    case EQUAL: /* True is all ones: a mask. */
        return -(int64_t)(first == second);
    case NOT_EQUAL:
        return -(int64_t)(first != second);
    case GREATER_EQUAL:
        return -(int64_t)(first >= second);
    case GREATER:
        return -(int64_t)(first > second);
    case AND:
        return (int64_t)((uint64_t)first & (uint64_t)second);
    case OR:
        return (int64_t)((uint64_t)first | (uint64_t)second);
    case XOR:
        return (int64_t)((uint64_t)first ^ (uint64_t)second);
    case AND_NOT:
        return (int64_t)((uint64_t)first & ~(uint64_t)second);
    default:
        return ref_fail(m, "there is no such element-wise operation");
    }
}

static int64_t combined(ref_machine *m, const arithmetic *op, int64_t first, int64_t second)
{
    switch (op->mode) {
    case MUL:
        return ref_times(first, second);
    case ADD:
        return op->is85 ? ref_plus(first, second) : sum55(op, first, second);
    case SUB:
        return op->is85 ? ref_plus(first, ref_times(second, -1)) : sum55(op, first, second);
    case MINIMUM:
        return first < second ? first : second;
    case MAXIMUM:
        return first > second ? first : second;
    case SHL:
        return low_word(ref_shift_left(first, places_of(second)));
    case SHR:
        return ref_shift(first, places_of(second), op->rounding);
    default:
        return op->is85 ? combined85(m, op, first, second) : ref_fail(m, "there is no such element-wise operation");
    }
}

static int broadcasts(ref_machine *m, ref_shape given, ref_shape whole)
{
    const int high = given.height == 1 || given.height == whole.height;
    const int wide = given.width == 1 || given.width == whole.width;
    const int deep = given.depth == 1 || given.depth == whole.depth;
    return high && wide && deep ? 1 : ref_fail(m, "an input has another shape than the output");
}

static int operand85(ref_machine *m, int which, ref_shape ofm, ref_source *source)
{
    const int names[3] = {which == 0 ? IFM_BROADCAST : IFM2_BROADCAST, which == 0 ? IFM_PRECISION : IFM2_PRECISION,
                          which == 0 ? IFM_ZERO_POINT : IFM2_ZERO_POINT};
    const uint32_t broadcast = ref_is_written(m, names[0]) ? ref_brief(m, names[0]) : 0u;
    const uint32_t precision = ref_brief(m, names[1]);
    const int is_signed = (precision & 1u) != 0u;
    const uint32_t zero = ref_is_written(m, names[2]) ? ref_brief(m, names[2]) : 0u;
    memset(source, 0, sizeof *source);
    source->zero_point = is_signed ? ref_signed(zero, 16) : (int64_t)zero;
    source->shape.height = source->shape.width = source->shape.depth = 1;
    if ((broadcast & 8u) != 0u) {
        const uint64_t value = ref_wide(m, OP_SCALAR) & 0xFFFFFFFFu;
        source->is_scalar = 1;
        source->scalar = is_signed ? ref_signed(value, 32) : (int64_t)value;
        return m->fault == NULL;
    }
    if (precision >> 14 == 2u) {
        const uint32_t number = ref_brief(m, which == 0 ? IFM_REGION : IFM2_REGION);
        if (number >= REF_CHAINS || !m->chains[number].filled) {
            return ref_fail(m, "nothing was chained to it");
        }
        source->chain = &m->chains[number];
        source->shape = source->chain->shape;
        return broadcasts(m, source->shape, ofm);
    }
    const ref_shape shape = {(broadcast & 1u) != 0u ? 1 : ofm.height, (broadcast & 2u) != 0u ? 1 : ofm.width,
                             (broadcast & 4u) != 0u ? 1 : ofm.depth};
    return ref_source_of(m, which, shape, source);
}

static int second55(ref_machine *m, ref_shape ofm, ref_source *source)
{
    const uint32_t broadcast = ref_brief(m, IFM2_BROADCAST);
    const int is_signed = (ref_brief(m, IFM2_PRECISION) & 1u) != 0u;
    const ref_shape shape = {(broadcast & 1u) != 0u ? 1 : ofm.height, (broadcast & 2u) != 0u ? 1 : ofm.width,
                             (broadcast & 4u) != 0u ? 1 : ofm.depth};
    if ((broadcast >> 7 & 1u) == 0u) {
        return ref_source_of(m, 1, shape, source);
    }
    memset(source, 0, sizeof *source);
    const uint32_t zero = ref_brief(m, IFM2_ZERO_POINT);
    const uint32_t value = ref_brief(m, IFM2_SCALAR);
    source->is_scalar = 1;
    source->zero_point = is_signed ? ref_signed(zero, 16) : (int64_t)zero;
    source->scalar = is_signed ? ref_signed(value, 16) : (int64_t)value;
    source->shape.height = source->shape.width = source->shape.depth = 1;
    return m->fault == NULL;
}

static int64_t at(const ref_source *s, int32_t y, int32_t x, int32_t c)
{
    return ref_source_value(s, s->shape.height == 1 ? 0 : y, s->shape.width == 1 ? 0 : x, s->shape.depth == 1 ? 0 : c);
}

static void operand_scale(uint64_t reg, int64_t *scale, int32_t *places, int32_t *up, int *rounding)
{
    *scale = (int64_t)(reg & 0x7FFFFFFFu);
    *places = (int32_t)(reg >> 32 & 63u);
    *up = (int32_t)(reg >> 38 & 31u);
    *rounding = (reg >> 45 & 1u) != 0u ? REF_NATURAL : REF_DOUBLE;
}

static int64_t scaled85(int64_t value, int64_t scale, int32_t places, int32_t up, int rounding)
{
    if (scale == 1 && places == 0) {
        return value;
    }
    return ref_rescale(ref_shift_left(value, up), scale, places + up, rounding);
}

static int64_t value85(ref_machine *m, const arithmetic *op, int64_t first, int64_t second)
{
    if (op->mode == LRELU && first < 0) {
        return scaled85(first, op->b, op->b_places, op->b_up, op->b_rounding);
    }
    first = scaled85(first, op->a, op->a_places, op->a_up, op->a_rounding);
    switch (op->mode) {
    case LRELU:
        return first;
    case ABS:
        return magnitude(first);
    case CLZ:
        return leading_zeros(first);
    case NOT:
        return (int64_t) ~(uint64_t)first;
    default:
        return combined(m, op, first, scaled85(second, op->b, op->b_places, op->b_up, op->b_rounding));
    }
}

static int32_t larger(int32_t a, int32_t b)
{
    return a > b ? a : b;
}

static void elementwise85(ref_machine *m, int mode)
{
    const ref_shape ofm = ref_ofm_shape(m);
    const int unary = mode == LRELU || mode == ABS || mode == CLZ || mode == NOT;
    arithmetic op;
    ref_source first;
    ref_source second;
    ref_output out;
    memset(&op, 0, sizeof op);
    memset(&second, 0, sizeof second);
    op.mode = mode;
    op.is85 = 1;
    if (m->fault != NULL || !operand85(m, 0, ofm, &first) || (!unary && !operand85(m, 1, ofm, &second))) {
        return;
    }
    const int32_t depth = unary ? first.shape.depth : larger(first.shape.depth, second.shape.depth);
    const ref_shape shape = {ofm.height, ofm.width, depth};
    operand_scale(ref_wide(m, IFM_SCALE), &op.a, &op.a_places, &op.a_up, &op.a_rounding);
    if (!unary || mode == LRELU) {
        operand_scale(ref_wide(m, IFM2_SCALE), &op.b, &op.b_places, &op.b_up, &op.b_rounding);
    }
    if (!ref_output_of(m, REF_ELEMENTWISE, mode, shape, &out)) {
        return;
    }
    op.rounding = out.rounding;
    for (int32_t y = 0; y < shape.height; ++y) {
        for (int32_t x = 0; x < shape.width; ++x) {
            for (int32_t c = 0; c < shape.depth && m->fault == NULL; ++c) {
                const int64_t value = value85(m, &op, at(&first, y, x, c), unary ? 0 : at(&second, y, x, c));
                ref_put(m, &out, y, x, c, value, out.scale, out.places);
            }
        }
    }
}

/* Finishes one value of the U55: some results are not scaled. */
static void put55(ref_machine *m, const arithmetic *op, const ref_output *out, const ref_shape *place, int64_t first,
                  int64_t second)
{
    int64_t value = 0;
    int plain = op->mode == CLZ || op->mode == MINIMUM || op->mode == MAXIMUM || op->mode == SHL || op->mode == SHR;
    if (op->mode == CLZ) {
        value = leading_zeros(first);
    } else if (op->mode == ABS) {
        value = magnitude(first);
    } else if (op->mode == LRELU) {
        value = first;
        plain = first >= 0;
    } else {
        value = combined(m, op, first, second);
    }
    const int64_t scale = op->mode == MUL && op->bytes == 4 ? 1 : out->scale;
    ref_put(m, out, place->height, place->width, place->depth, value, plain ? 1 : scale, plain ? 0 : out->places);
}

static void elementwise55(ref_machine *m, int mode)
{
    static const uint8_t roundings[4] = {REF_DOUBLE, REF_DOWN, REF_NATURAL, REF_NATURAL};
    const ref_shape ofm = ref_ofm_shape(m);
    const int unary = mode == LRELU || mode == ABS || mode == CLZ;
    const uint32_t precision = ref_brief(m, IFM_PRECISION);
    arithmetic op;
    ref_source first;
    ref_source second;
    ref_output out;
    memset(&op, 0, sizeof op);
    memset(&second, 0, sizeof second);
    op.mode = mode;
    op.bytes = 1 << (precision >> 2 & 3u);
    op.scaled = (int)(precision >> 8 & 3u);
    op.a_rounding = roundings[precision >> 14];
    if (m->fault != NULL || !ref_source_of(m, 0, ofm, &first) || (!unary && !second55(m, ofm, &second)) ||
        !ref_output_of(m, REF_ELEMENTWISE, mode, ofm, &out)) {
        return;
    }
    op.rounding = out.rounding;
    if (mode == ADD || mode == SUB) {
        const uint64_t a = ref_wide(m, IFM_SCALE);
        op.a = (int64_t)(a & 0xFFFFFFFFu);
        op.a_places = (int32_t)(a >> 32 & 63u);
        op.b = (int64_t)(ref_wide(m, IFM2_SCALE) & 0xFFFFFFFFu);
    }
    if (mode == MUL || mode == ADD || mode == SUB || mode == ABS || mode == LRELU) {
        const uint64_t scale = ref_wide(m, OFM_SCALE);
        out.scale = (int64_t)(scale & 0xFFFFFFFFu);
        out.places = (int32_t)(scale >> 32 & 63u);
    }
    const int swapped = !unary && (ref_brief(m, IFM2_BROADCAST) >> 6 & 1u) != 0u;
    ref_shape place;
    for (place.height = 0; place.height < ofm.height; ++place.height) {
        for (place.width = 0; place.width < ofm.width; ++place.width) {
            for (place.depth = 0; place.depth < ofm.depth && m->fault == NULL; ++place.depth) {
                const int64_t a = ref_source_value(&first, place.height, place.width, place.depth);
                const int64_t b = unary ? 0 : at(&second, place.height, place.width, place.depth);
                put55(m, &op, &out, &place, swapped ? b : a, swapped ? a : b);
            }
        }
    }
}

void ref_elementwise(ref_machine *m, int mode)
{
    if (m->product == REF_U85) {
        elementwise85(m, mode);
    } else {
        elementwise55(m, mode);
    }
}
