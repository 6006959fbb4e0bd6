/* Weights one after the other: from the compressed format of all three NPUs, and from the fast one of the U85.

   A compressed stream is a row of slices. A slice has a header, and then chunks in which the unary halves of up to
   twelve weights and of as many runs of zeros come first; the low bits of each follow with the next chunk. */
#include "ethosu_reference.h"

#include <string.h>

#define RUNS_OFF 6u
#define STREAM_END 7u
#define NOT_COMPRESSED 7u
#define QUEUE 64u
#define FAST_HEADER 32u
#define FAST_TABLE_BIT 112u
#define LARGEST 512u

static uint32_t bits_of(ref_machine *m, ref_weights *w, int32_t count)
{
    uint32_t value = 0;
    if (w->bit + (uint64_t)count > (uint64_t)w->length * 8u) {
        (void)ref_fail(m, "the weights are cut off");
        w->ended = 1;
        return 0;
    }
    for (int32_t got = 0; got < count;) {
        const uint32_t inside = (uint32_t)(w->bit & 7u);
        int32_t take = 8 - (int32_t)inside;
        take = take < count - got ? take : count - got;
        const uint32_t part = ((uint32_t)w->bytes[w->bit >> 3] >> inside) & ((1u << take) - 1u);
        value |= part << got;
        w->bit += (uint64_t)take;
        got += take;
    }
    return value;
}

void ref_weights_start(ref_weights *w, const uint8_t *bytes, uint32_t length)
{
    memset(w, 0, sizeof *w);
    w->bytes = bytes;
    w->length = length;
}

/* Looks for the next slice; 0 where the stream ends. */
static int find_slice(ref_machine *m, ref_weights *w, uint32_t *runs)
{
    for (;;) {
        if (w->bit + 3u > (uint64_t)w->length * 8u) {
            return 0;
        }
        *runs = bits_of(m, w, 3);
        if (*runs != STREAM_END) {
            return 1;
        }
        w->bit = (w->bit + 7u) & ~UINT64_C(7);
        w->started = 0; /* Whatever follows brings its own palette. */
    }
}

static void read_palette(ref_machine *m, ref_weights *w)
{
    w->offset = (int32_t)bits_of(m, w, 5);
    w->palette_size = (int32_t)bits_of(m, w, 5);
    w->palette_size += w->palette_size > 0 ? 1 : 0;
    w->palette_bits = (int32_t)bits_of(m, w, 3) + 2;
    for (int32_t i = 0; i < w->palette_size; ++i) {
        w->palette[i] = (int32_t)bits_of(m, w, w->palette_bits);
    }
}

static int start_slice(ref_machine *m, ref_weights *w)
{
    uint32_t runs = 0;
    if (!find_slice(m, w, &runs)) {
        w->ended = 1;
        return 0;
    }
    const int before = w->runs;
    w->runs = runs != RUNS_OFF;
    w->values_left = bits_of(m, w, 15) + 1u;
    uint32_t divisor = bits_of(m, w, 3);
    w->truncated = bits_of(m, w, 1) != 0u;
    const int fresh = bits_of(m, w, 1) != 0u;
    if ((runs > 3u && w->runs) || (!fresh && (!w->started || before != w->runs)) || divisor == 6u) {
        return ref_fail(m, "the weights are damaged");
    }
    w->started = 1;
    if (fresh) {
        read_palette(m, w);
    }
    w->unpacked = divisor == NOT_COMPRESSED;
    if (w->unpacked) {
        divisor = (uint32_t)w->palette_bits;
        if (w->palette_size > 0) {
            for (divisor = 0; (1 << divisor) < w->palette_size; ++divisor) {
            }
        }
    }
    w->value_bits = (int32_t)divisor;
    w->run_bits = w->runs ? (int32_t)runs : 0;
    w->values_wanted = w->values_left;
    w->runs_wanted = w->runs ? w->values_left + (fresh ? 1u : 0u) : 0u;
    w->runs_left = w->runs_wanted;
    w->values_read = w->runs_read = 0;
    w->value_carry = w->run_carry = 0;
    w->value_count = w->run_count = 0;
    w->run_next = w->runs && fresh;
    return m->fault == NULL;
}

/* The high parts of up to twelve weights. */
static int value_quotients(ref_machine *m, ref_weights *w, uint32_t ones, uint32_t *quotients)
{
    const int most = w->unpacked && w->value_bits > 5 ? 8 : 12;
    int twos = 0;
    int count = 0;
    for (int i = 0; i < most; ++i) {
        twos += (int)(ones >> i & 1u);
    }
    uint32_t more = bits_of(m, w, twos);
    for (int i = 0; i < most; ++i) {
        uint32_t code = ones >> i & 1u;
        if (code != 0u) {
            code += more & 1u;
            more >>= 1;
        }
        w->value_carry += code;
        if (code < 2u || w->truncated) {
            quotients[count++] = w->value_carry;
            w->value_carry = 0;
        }
    }
    return count;
}

static int run_quotients(ref_machine *m, ref_weights *w, uint32_t *quotients)
{
    const int length = w->run_bits < 3 ? 12 : 8;
    const uint32_t unary = bits_of(m, w, length);
    int count = 0;
    for (int i = 0; i < length; ++i) {
        if ((unary >> i & 1u) != 0u) {
            ++w->run_carry;
        } else {
            quotients[count++] = w->run_carry;
            w->run_carry = 0;
        }
    }
    return count;
}

/* Reads one chunk: quotients of the next weights and runs, and the low bits of those of the chunk before. */
static int read_chunk(ref_machine *m, ref_weights *w)
{
    uint32_t values[12] = {0};
    uint32_t runs[12] = {0};
    const int64_t ahead = w->runs ? (int64_t)w->values_read - (int64_t)w->runs_read : 0;
    const int takes_values = ahead < 8 && w->values_read < w->values_wanted;
    const int takes_runs = w->runs && ahead >= 0 && w->runs_read < w->runs_wanted;
    int value_count = 0;
    int run_count = 0;
    const uint32_t ones = takes_values && !w->unpacked ? bits_of(m, w, 12) : 0u;
    if (takes_runs) {
        run_count = run_quotients(m, w, runs);
        w->runs_read += (uint32_t)run_count;
    }
    if (takes_values) {
        value_count = value_quotients(m, w, ones, values);
        w->values_read += (uint32_t)value_count;
    }
    for (int i = 0; i < w->value_count && w->values_left > 0u; ++i, --w->values_left) {
        const uint32_t value = (w->value_quotients[i] << w->value_bits) + bits_of(m, w, w->value_bits);
        if (value >= LARGEST || w->value_tail - w->value_head >= QUEUE) {
            return ref_fail(m, "the weights are damaged");
        }
        w->value_queue[w->value_tail++ % QUEUE] = (uint16_t)value;
    }
    for (int i = 0; i < w->run_count && w->runs_left > 0u; ++i, --w->runs_left) {
        if (w->run_tail - w->run_head >= QUEUE) {
            return ref_fail(m, "the weights are damaged");
        }
        w->run_queue[w->run_tail++ % QUEUE] = (w->run_quotients[i] << w->run_bits) + bits_of(m, w, w->run_bits);
    }
    const int waits = w->value_count > 0 || w->run_count > 0;
    memcpy(w->value_quotients, values, sizeof(uint32_t) * (size_t)value_count);
    memcpy(w->run_quotients, runs, sizeof(uint32_t) * (size_t)run_count);
    w->value_count = value_count;
    w->run_count = run_count;
    if (!takes_values && !takes_runs && !waits) {
        return ref_fail(m, "the weights are damaged"); /* Nothing can come any more. */
    }
    return m->fault == NULL;
}

static int32_t weight_of(const ref_weights *w, int32_t index)
{
    const int32_t value = index < w->palette_size ? w->palette[index] : index - w->palette_size + w->offset;
    return (value & 1) != 0 ? -(value >> 1) : value >> 1;
}

static int slice_is_done(const ref_weights *w)
{
    return w->values_left == 0u && w->runs_left == 0u && w->value_head == w->value_tail && w->run_head == w->run_tail;
}

static uint32_t fast_bits(const ref_weights *w, uint64_t bit, uint32_t count)
{
    uint32_t value = 0;
    for (uint32_t i = 0; i < count; ++i) {
        value |= ((uint32_t)w->bytes[(bit + i) >> 3] >> ((bit + i) & 7u) & 1u) << i;
    }
    return value;
}

void ref_weights_fast(ref_machine *m, ref_weights *w, const uint8_t *bytes, uint32_t length)
{
    ref_weights_start(w, bytes, length);
    w->is_fast = 1;
    if (length < FAST_HEADER) {
        (void)ref_fail(m, "the weights are cut off");
        return;
    }
    w->plain = (bytes[0] & 1u) != 0u;
    w->index_bits = w->plain ? 8 : (bytes[0] & 2u) != 0u ? 2 : 4;
    w->adjust = (int32_t)ref_signed(bytes[13], 8);
    w->count = (uint64_t)(length - FAST_HEADER) * 8u / (uint64_t)w->index_bits;
    for (uint32_t i = 0; i < 16u && !w->plain; ++i) {
        const uint32_t code = fast_bits(w, FAST_TABLE_BIT + 9u * i, 9);
        w->palette[i] = (code & 1u) != 0u ? -(int32_t)(code >> 1) : (int32_t)(code >> 1);
    }
}

/* Streams are interleaved part by part; whatever does not fill all of them is left out. */
static int fast_next(ref_weights *w, int32_t *value)
{
    uint64_t place = w->taken;
    uint64_t count = w->count;
    if (w->parts > 1u) {
        const uint64_t group = w->part_weights * w->parts;
        count = count / group * group;
        place = (w->taken / w->part_weights * w->parts + w->part) * w->part_weights + w->taken % w->part_weights;
    }
    if (place >= count) {
        w->ended = 1;
        return 0;
    }
    ++w->taken;
    const uint32_t index = fast_bits(w, FAST_HEADER * 8u + place * (uint64_t)w->index_bits, (uint32_t)w->index_bits);
    *value = w->plain ? (int32_t)ref_signed(index, 8) - w->adjust : w->palette[index];
    return 1;
}

int ref_weights_next(ref_machine *m, ref_weights *w, int32_t *value)
{
    if (w->is_fast) {
        return fast_next(w, value);
    }
    while (m->fault == NULL && !w->ended) {
        if (w->zeros > 0u) {
            --w->zeros;
            *value = 0;
            return 1;
        }
        if (slice_is_done(w)) {
            (void)start_slice(m, w);
        } else if (w->run_next && w->run_head != w->run_tail) {
            w->zeros = w->run_queue[w->run_head++ % QUEUE];
            w->run_next = 0;
        } else if (!w->run_next && w->value_head != w->value_tail) {
            *value = weight_of(w, w->value_queue[w->value_head++ % QUEUE]);
            w->run_next = w->runs;
            return 1;
        } else {
            (void)read_chunk(m, w);
        }
    }
    return 0;
}

int ref_weights_end(ref_machine *m, ref_weights *w)
{
    int32_t value = 0;
    uint64_t count = 0;
    while (ref_weights_next(m, w, &value)) {
        if (value != 0 || ++count > ETHOSU_REFERENCE_WORK) {
            return ref_fail(m, "the weights are damaged: the padding after them is not zero");
        }
    }
    return m->fault == NULL;
}
