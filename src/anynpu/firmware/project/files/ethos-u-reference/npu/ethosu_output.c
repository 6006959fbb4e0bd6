/* From a sum to what is stored: scale, zero point, limits, table, and the place in memory. */
#include "ethosu_reference.h"

#include <string.h>

#define WORD 31 /* The width of a scale: double rounding rounds behind it and behind the rest of the shift. */
enum { TABLE_NONE, TABLE_U8, TABLE_S8, TABLE_S16, TABLE_S32, TABLE_SLOPES };

/* tanh(x / 48) at whole x in 16 bits, as the U55 and U65 have it; it is TFLite's. */
static const uint16_t curve_points[257] = {
    0, 683, 1365, 2045, 2725, 3401, 4075, 4745, 5412, 6073, 6730, 7381, 8026, 8664, 9296, 9920, 10536, 11144,
    11743, 12334, 12915, 13487, 14049, 14601, 15143, 15675, 16196, 16707, 17207, 17696, 18174, 18641, 19097, 19543,
    19977, 20401, 20813, 21215, 21606, 21987, 22357, 22717, 23066, 23406, 23735, 24055, 24365, 24665, 24956, 25239,
    25512, 25776, 26032, 26280, 26520, 26751, 26975, 27191, 27400, 27602, 27797, 27985, 28167, 28342, 28511, 28673,
    28831, 28982, 29128, 29268, 29404, 29534, 29660, 29781, 29898, 30010, 30118, 30222, 30322, 30418, 30511, 30600,
    30686, 30768, 30847, 30923, 30997, 31067, 31135, 31200, 31262, 31322, 31380, 31436, 31489, 31540, 31589, 31637,
    31682, 31726, 31768, 31808, 31846, 31884, 31919, 31953, 31986, 32018, 32048, 32077, 32105, 32132, 32158, 32182,
    32206, 32229, 32251, 32271, 32292, 32311, 32329, 32347, 32364, 32381, 32396, 32411, 32426, 32440, 32453, 32466,
    32478, 32490, 32501, 32512, 32523, 32533, 32542, 32551, 32560, 32569, 32577, 32584, 32592, 32599, 32606, 32613,
    32619, 32625, 32631, 32636, 32642, 32647, 32652, 32657, 32661, 32665, 32670, 32674, 32677, 32681, 32685, 32688,
    32691, 32694, 32697, 32700, 32703, 32706, 32708, 32711, 32713, 32715, 32717, 32720, 32721, 32723, 32725, 32727,
    32729, 32730, 32732, 32733, 32735, 32736, 32737, 32739, 32740, 32741, 32742, 32743, 32744, 32745, 32746, 32747,
    32748, 32749, 32749, 32750, 32751, 32752, 32752, 32753, 32754, 32754, 32755, 32755, 32756, 32756, 32757, 32757,
    32758, 32758, 32758, 32759, 32759, 32760, 32760, 32760, 32761, 32761, 32761, 32761, 32762, 32762, 32762, 32762,
    32763, 32763, 32763, 32763, 32763, 32764, 32764, 32764, 32764, 32764, 32764, 32765, 32765, 32765, 32765, 32765,
    32765, 32765, 32765, 32766, 32766, 32766, 32766, 32766, 32766, 32766, 32766, 32766, 32766, 32767, 32766,
};

int64_t ref_times(int64_t a, int64_t b)
{
    return (int64_t)((uint64_t)a * (uint64_t)b);
}

int64_t ref_plus(int64_t a, int64_t b)
{
    return (int64_t)((uint64_t)a + (uint64_t)b);
}

int64_t ref_shift_left(int64_t value, int32_t places)
{
    return (int64_t)((uint64_t)value << (places > 63 ? 63 : places));
}

static int64_t shift_natural(int64_t value, int32_t places)
{
    return places > 0 ? ref_plus(value, INT64_C(1) << (places - 1)) >> places : value;
}

static int64_t shift_away(int64_t value, int32_t places)
{
    return places > 0 ? ref_plus(value, (INT64_C(1) << (places - 1)) - (value < 0 ? 1 : 0)) >> places : value;
}

int64_t ref_shift(int64_t value, int32_t places, int rounding)
{
    places = places > 62 ? 62 : places;
    switch (rounding) {
    case REF_DOWN:
        return value >> places;
    case REF_TO_ZERO:
        return value < 0 ? ref_times(ref_times(value, -1) >> places, -1) : value >> places;
    case REF_NATURAL:
        return shift_natural(value, places);
    default:
        return shift_away(value, places);
    }
}

int64_t ref_rescale(int64_t value, int64_t scale, int32_t places, int rounding)
{
    const int64_t product = ref_times(value, scale);
    if (rounding != REF_DOUBLE) {
        return ref_shift(product, places, rounding);
    }
    if (places <= WORD) {
        return shift_natural(product, places);
    }
    return shift_away(shift_natural(product, WORD), places > 2 * WORD ? WORD : places - WORD);
}

static int64_t clamp(int64_t value, int64_t low, int64_t high)
{
    const int64_t raised = value < low ? low : value;
    return raised > high ? high : raised;
}

static int32_t curve_point(int32_t place)
{
    return place < 0 ? -(int32_t)curve_points[-place] : (int32_t)curve_points[place];
}

/* A value and a slope: from a table of 512 entries, or from the curve above. */
static void curve_entry(const ref_output *out, int32_t place, int64_t *value, int64_t *slope)
{
    if (out->table != NULL) {
        const int64_t entry = ref_load(out->table + 4 * (place + 256), 4, 1);
        *value = ref_signed((uint64_t)entry, 16);
        *slope = entry >> 16;
    } else {
        *value = curve_point(place);
        *slope = curve_point(place + 1) - *value;
    }
}

/* tanh or the logistic function of values in steps of 1 / 3 of 2^-12, as TFLite computes them at 16 bits. */
static int64_t curve(const ref_output *out, int64_t given)
{
    const int tanh = out->curve == 1;
    const int bits = tanh ? 8 : 9;
    const int64_t limit = INT64_C(255) << bits;
    const int64_t inside = clamp(given, -limit, limit - 1);
    int64_t value = 0;
    int64_t slope = 0;
    if (given >= limit || given <= -limit) {
        return given < 0 ? (tanh ? -32767 : 1) : 32767;
    }
    curve_entry(out, (int32_t)(inside >> bits), &value, &slope);
    const int64_t whole = value * (INT64_C(1) << bits) + slope * (inside & ((INT64_C(1) << bits) - 1));
    const int64_t half = tanh ? (given < 0 ? 127 : 128) : (given < 0 ? 511 : 512) + (INT64_C(1) << 24);
    return (whole + half) >> (tanh ? 8 : 10);
}

static int64_t look_up(ref_machine *m, const ref_output *out, int64_t value)
{
    const int64_t first = out->table_kind == TABLE_SLOPES ? -32768 : out->table_kind == TABLE_U8 ? 0 : -128;
    const int64_t last = out->table_kind == TABLE_SLOPES ? 32767 : first + 255;
    if (m->product == REF_U85) {
        value = clamp(value, first, last);
    } else if (value < first || value > last) {
        (void)ref_fail(m, "a value is outside of its table");
        return 0;
    }
    switch (out->table_kind) {
    case TABLE_SLOPES: {
        const int64_t entry = ref_load(out->table + 4 * ((value >> 7) + 256), 4, 1);
        return ref_signed((uint64_t)entry, 16) + (((entry >> 16) * (value & 127) + 64) >> 7);
    }
    case TABLE_S16:
        return ref_load(out->table + 2 * (value - first), 2, 1);
    case TABLE_S32:
        return ref_load(out->table + 4 * (value - first), 4, 1);
    default:
        return ref_load(out->table + (value - first), 1, out->table_kind == TABLE_S8);
    }
}

void ref_put(ref_machine *m, const ref_output *out, int32_t y, int32_t x, int32_t c, int64_t total, int64_t scale,
             int32_t places)
{
    const size_t flat = ((size_t)y * (size_t)out->shape.width + (size_t)x) * (size_t)out->shape.depth + (size_t)c;
    if (out->adds == 1) {
        total = ref_plus(total, m->accumulator[flat]);
    } else if (out->adds == 2) {
        total = ref_plus(total, ref_source_value(&out->addend, y, x, c));
    }
    if (out->keeps) {
        m->accumulator[flat] = total;
        return;
    }
    int64_t value = ref_plus(ref_rescale(total, scale, places, out->rounding), out->zero_point);
    if (out->curve != 0) {
        value = curve(out, value);
    }
    if (out->clips) {
        value = clamp(value, out->low, out->high);
    }
    if (out->limits) {
        value = clamp(value, out->least, out->most);
    }
    if (out->table_kind != TABLE_NONE) {
        value = look_up(m, out, value);
    }
    if (out->chain != NULL) {
        uint8_t raw[4] = {0};
        ref_store(raw, out->map.bytes, value);
        out->chain->data[flat] = (int32_t)ref_load(raw, out->map.bytes, out->map.is_signed);
        return;
    }
    const int32_t place[3] = {out->flip == 1 ? out->shape.height - 1 - y : y,
                              out->flip == 2 ? out->shape.width - 1 - x : x,
                              out->flip == 3 ? out->shape.depth - 1 - c : c};
    const int64_t pixel = ref_map_pixel(&out->map, place[out->turn[0]], place[out->turn[1]]);
    ref_store(out->map.memory + pixel + ref_map_channel(&out->map, place[out->turn[2]]), out->map.bytes, value);
}

static void limits_of(ref_output *out, int32_t bytes)
{
    const int64_t span = INT64_C(1) << (8 * bytes);
    out->least = out->map.is_signed ? -(span / 2) : 0;
    out->most = out->map.is_signed ? span / 2 - 1 : span - 1;
}

static int table_at(ref_machine *m, ref_output *out, int64_t start, int64_t bytes)
{
    if (start < 0 || start + bytes > REF_TABLES) {
        return ref_fail(m, "a table is outside of the memory of tables");
    }
    out->table = m->tables + start;
    return 1;
}

static int activation55(ref_machine *m, ref_output *out)
{
    const uint32_t function = ref_brief(m, ACTIVATION);
    const uint32_t table = function & 0xFFFu;
    const int forced = (function >> 12 & 3u) != 0u;
    out->curve = table == 3u ? 1 : table == 4u ? 2 : 0;
    if (out->map.bytes < 4 || forced) {
        limits_of(out, forced ? 1 : out->map.bytes);
        out->low = out->low > out->least ? out->low : out->least;
        out->high = out->high < out->most ? out->high : out->most;
        out->clips = 1;
    }
    if (table < 16u) {
        return 1;
    }
    const int32_t bytes = out->map.bytes;
    out->table_kind = bytes == 2 ? TABLE_SLOPES : bytes == 4 ? TABLE_S32 : out->map.is_signed ? TABLE_S8 : TABLE_U8;
    return table_at(m, out, (int64_t)(table - 16u) * 256, bytes == 2 ? 2048 : 256 * bytes);
}

static int activation85(ref_machine *m, ref_output *out)
{
    static const struct {
        uint8_t kind;
        uint8_t bytes;
    } tables[10] = {{0, 0},         {TABLE_U8, 1}, {0, 0},         {0, 0}, {TABLE_S8, 1},
                    {TABLE_S16, 2}, {0, 0},        {TABLE_S32, 4}, {0, 0}, {0, 0}};
    const uint32_t activation = ref_brief(m, ACTIVATION);
    const uint32_t function = activation & 31u;
    const int64_t slot = activation >> 5 & 7u;
    out->clips = (activation >> 12 & 1u) == 0u;
    if (function == 10u || function == 11u) {
        out->curve = function == 10u ? 1 : 2;
        out->clips = 0;
        return table_at(m, out, 0, 2048);
    }
    if (out->clips && !ref_is_written(m, ACTIVATION_MIN)) {
        return ref_fail(m, "a register was never written");
    }
    if (function == 0u) {
        out->limits = out->map.bytes < 4 && out->clips; /* Without clipping the low bits are stored. */
        limits_of(out, out->map.bytes);
        return 1;
    }
    if (function < 10u && tables[function].bytes != 0u) {
        out->table_kind = tables[function].kind;
        return table_at(m, out, slot * 256 * tables[function].bytes, 256 * (int64_t)tables[function].bytes);
    }
    out->table_kind = TABLE_SLOPES;
    return table_at(m, out, slot * 2048, 2048);
}

static int same_shape(ref_shape a, ref_shape b)
{
    return a.height == b.height && a.width == b.width && a.depth == b.depth;
}

static int accumulator85(ref_machine *m, ref_output *out, int adds)
{
    const uint32_t format = ref_brief(m, ACC_FORMAT);
    const uint64_t count = (uint64_t)out->shape.height * (uint64_t)out->shape.width * (uint64_t)out->shape.depth;
    out->adds = adds ? (int)(format >> 4 & 3u) : 0;
    out->keeps = (format >> 6 & 1u) != 0u || ref_brief(m, OFM_PRECISION) >> 14 == 3u;
    if (out->adds == 1 && (!m->accumulator_filled || !same_shape(m->accumulator_shape, out->shape))) {
        return ref_fail(m, "it adds to an accumulator that nothing filled");
    }
    if (out->adds == 2 && !ref_source_of(m, 1, out->shape, &out->addend)) {
        return 0;
    }
    if (!out->keeps) {
        return 1;
    }
    if (count > m->accumulator_capacity) {
        m->accumulator = ref_kept(m, count * sizeof(int64_t));
        m->accumulator_capacity = m->accumulator != NULL ? (uint32_t)count : 0u;
    }
    m->accumulator_shape = out->shape;
    m->accumulator_filled = 1;
    return m->fault == NULL;
}

static int chain85(ref_machine *m, ref_output *out)
{
    const uint32_t number = ref_brief(m, OFM_REGION);
    const uint64_t count = (uint64_t)out->shape.height * (uint64_t)out->shape.width * (uint64_t)out->shape.depth;
    if (number >= REF_CHAINS) {
        return ref_fail(m, "there is no such chain");
    }
    ref_chain *chain = &m->chains[number];
    if (count > chain->capacity) {
        chain->data = ref_kept(m, count * sizeof(int32_t));
        chain->capacity = chain->data != NULL ? (uint32_t)count : 0u;
    }
    chain->is_unsigned = !out->map.is_signed;
    chain->filled = 1;
    chain->shape = out->shape;
    out->chain = chain;
    return m->fault == NULL;
}

/* Where the value at a place goes when rows, columns and channels change their roles. */
static void turn85(ref_output *out, uint32_t precision)
{
    static const uint8_t turns[8][3] = {{0, 1, 2}, {1, 0, 2}, {0, 2, 1}, {1, 2, 0},
                                        {0, 1, 2}, {0, 1, 2}, {2, 0, 1}, {2, 1, 0}};
    out->flip = (int32_t)(precision >> 9 & 3u);
    for (int i = 0; i < 3; ++i) {
        out->turn[i] = turns[precision >> 11 & 7u][i];
    }
}

static int output85(ref_machine *m, int kind, int mode, ref_output *out)
{
    static const uint8_t roundings[8] = {REF_DOUBLE, REF_NATURAL, REF_DOUBLE, REF_AWAY,
                                         REF_TO_ZERO, REF_DOWN, REF_NATURAL, REF_NATURAL};
    const uint64_t scale = ref_wide(m, OFM_SCALE);
    const uint32_t precision = ref_brief(m, OFM_PRECISION);
    const int elementwise = kind == REF_ELEMENTWISE;
    const int pool_adds = kind == REF_POOL && (mode == 1 || mode == 2 || mode == 3 || mode == 4);
    if (!accumulator85(m, out, kind == REF_CONV || kind == REF_DEPTHWISE || pool_adds)) {
        return 0;
    }
    if (out->keeps) {
        return 1;
    }
    out->map.bytes = 1 << (precision >> 1 & 3u);
    out->map.is_signed = (precision & 1u) != 0u;
    out->scale = (int64_t)(scale & 0x7FFFFFFFu);
    out->places = (int32_t)(scale >> 32 & 63u);
    out->rounding = roundings[scale >> 45 & 7u];
    if (elementwise && mode == 0 && (ref_brief(m, IFM_PRECISION) >> 2 & 3u) == 2u) {
        out->scale = 1; /* A product of 32-bit numbers is shifted, not scaled. */
    }
    if (out->map.bytes == 8) {
        return ref_fail(m, "a tensor has elements of 64 bits");
    }
    if (!activation85(m, out)) {
        return 0;
    }
    if (precision >> 14 == 2u) {
        return chain85(m, out);
    }
    turn85(out, precision);
    return 1;
}

int ref_output_of(ref_machine *m, int kind, int mode, ref_shape shape, ref_output *out)
{
    static const uint8_t roundings[4] = {REF_DOUBLE, REF_DOWN, REF_NATURAL, REF_NATURAL};
    const uint32_t precision = ref_brief(m, OFM_PRECISION);
    memset(out, 0, sizeof *out);
    out->shape = shape;
    out->turn[1] = 1;
    out->turn[2] = 2;
    const int is_signed = (precision & 1u) != 0u;
    const int has_zero = m->product == REF_U85 || ref_is_written(m, OFM_ZERO_POINT);
    const uint32_t zero = has_zero ? ref_brief(m, OFM_ZERO_POINT) : 0u;
    out->zero_point = is_signed ? ref_signed(zero, 16) : (int64_t)zero;
    if (m->product != REF_U85 || ref_is_written(m, ACTIVATION_MIN)) {
        const uint32_t low = ref_brief(m, ACTIVATION_MIN);
        const uint32_t high = ref_brief(m, ACTIVATION_MAX);
        out->low = is_signed ? ref_signed(low, 16) : (int64_t)low;
        out->high = is_signed ? ref_signed(high, 16) : (int64_t)high;
    }
    if (m->product == REF_U85) {
        if (!output85(m, kind, mode, out)) {
            return 0;
        }
        if (out->keeps || out->chain != NULL) {
            return m->fault == NULL;
        }
    } else {
        out->rounding = roundings[precision >> 14];
        out->scale = 1;
    }
    if (!ref_map_of(m, 2, &out->map)) {
        return 0;
    }
    if (m->product != REF_U85 && !activation55(m, out)) {
        return 0;
    }
    const int32_t sizes[3] = {shape.height, shape.width, shape.depth};
    const ref_shape turned = {sizes[out->turn[0]], sizes[out->turn[1]], sizes[out->turn[2]]};
    if (!out->map.writable) {
        return ref_fail(m, "it writes into read-only memory");
    }
    return ref_map_check(m, &out->map, turned);
}
