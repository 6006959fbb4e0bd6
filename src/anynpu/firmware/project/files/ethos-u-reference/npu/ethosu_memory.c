/* Registers, regions, and feature maps in them. Every access is checked before the first byte is touched. */
#include "ethosu_reference.h"

#include <string.h>

#define ADDRESS_BITS 40
#define BRICK 16 /* How many channels lie together in the format NHCWB16. */

int ref_fail(ref_machine *m, const char *why)
{
    if (m->fault == NULL) {
        m->fault = why;
    }
    return 0;
}

uint32_t ref_brief(ref_machine *m, int number)
{
    const int place = number - REF_SHORT_FIRST;
    if (m->brief_written[place] == 0u) {
        (void)ref_fail(m, "a register was never written");
    }
    return m->brief[place];
}

uint64_t ref_wide(ref_machine *m, int number)
{
    if (m->wide_written[number] == 0u) {
        (void)ref_fail(m, "a register was never written");
    }
    return m->wide[number];
}

int ref_is_written(const ref_machine *m, int number)
{
    return m->brief_written[number - REF_SHORT_FIRST] != 0u;
}

int64_t ref_signed(uint64_t value, int bits)
{
    const uint64_t low = value & ((UINT64_C(1) << bits) - 1u);
    const int64_t positive = (int64_t)low;
    return (low >> (bits - 1)) != 0u ? positive - (INT64_C(1) << bits) : positive;
}

int64_t ref_address(ref_machine *m, int number)
{
    return (int64_t)(ref_wide(m, number) & ((UINT64_C(1) << ADDRESS_BITS) - 1u));
}

int64_t ref_stride(ref_machine *m, int number)
{
    return ref_signed(ref_wide(m, number), ADDRESS_BITS);
}

uint8_t *ref_bytes(ref_machine *m, uint32_t region, int64_t address, int64_t length)
{
    const uint32_t place = region & 7u;
    if (m->region[place] == NULL) {
        (void)ref_fail(m, "there is no such memory region");
        return NULL;
    }
    if (address < 0 || length < 0 || (uint64_t)address + (uint64_t)length > m->region_bytes[place]) {
        (void)ref_fail(m, "an address is outside of its memory region");
        return NULL;
    }
    return m->region[place] + address;
}

static uint64_t aligned(uint64_t bytes)
{
    return (bytes + 7u) & ~UINT64_C(7);
}

void *ref_scratch(ref_machine *m, uint64_t *used, uint64_t bytes)
{
    const uint64_t free_bytes = (uint64_t)m->work_bytes - m->kept_bytes;
    if (bytes > free_bytes || aligned(bytes) > free_bytes - *used) {
        (void)ref_fail(m, "the reference's working memory is too small");
        return NULL;
    }
    uint8_t *found = m->work + *used;
    *used += aligned(bytes);
    return found;
}

void *ref_kept(ref_machine *m, uint64_t bytes)
{
    if (bytes > m->work_bytes || aligned(bytes) > (uint64_t)m->work_bytes - m->kept_bytes) {
        (void)ref_fail(m, "the reference's working memory is too small");
        return NULL;
    }
    m->kept_bytes += (uint32_t)aligned(bytes);
    return m->work + (m->work_bytes - m->kept_bytes);
}

int ref_map_of(ref_machine *m, int which, ref_map *map)
{
    static const int briefs[3][6] = {
        {IFM_PRECISION, IFM_REGION, IFM_HEIGHT0_M1, IFM_HEIGHT1_M1, IFM_WIDTH0_M1, IFM_ZERO_POINT},
        {IFM2_PRECISION, IFM2_REGION, IFM2_HEIGHT0_M1, IFM2_HEIGHT1_M1, IFM2_WIDTH0_M1, IFM2_ZERO_POINT},
        {OFM_PRECISION, OFM_REGION, OFM_HEIGHT0_M1, OFM_HEIGHT1_M1, OFM_WIDTH0_M1, OFM_ZERO_POINT},
    };
    static const int wides[3] = {IFM_BASE0, IFM2_BASE0, OFM_BASE0};
    const int *brief = briefs[which];
    const uint32_t precision = ref_brief(m, brief[0]);
    const uint32_t width = precision >> (which == 2 ? 1 : 2) & 3u;
    const uint32_t region = ref_brief(m, brief[1]) & 7u;
    for (int i = 0; i < 4; ++i) {
        map->base[i] = ref_address(m, wides[which] + i);
    }
    map->memory = m->region[region];
    map->memory_bytes = m->region_bytes[region];
    map->writable = region != 0u;
    map->height0 = (int32_t)ref_brief(m, brief[2]) + 1;
    map->height1 = (int32_t)ref_brief(m, brief[3]) + 1;
    map->width0 = (int32_t)ref_brief(m, brief[4]) + 1;
    map->stride_x = ref_stride(m, wides[which] + 4);
    map->stride_y = ref_stride(m, wides[which] + 5);
    map->stride_c = ref_stride(m, wides[which] + 6);
    map->bytes = 1 << width;
    map->is_signed = (precision & 1u) != 0u;
    map->bricks = (precision >> 6 & 3u) != 0u;
    map->zero_point = 0;
    if (ref_is_written(m, brief[5])) {
        const uint32_t zero = ref_brief(m, brief[5]);
        map->zero_point = map->is_signed ? (int32_t)ref_signed(zero, 16) : (int32_t)zero;
    }
    if (width == 3u) {
        return ref_fail(m, "a tensor has elements of 64 bits");
    }
    if (map->memory == NULL) {
        return ref_fail(m, "there is no such memory region");
    }
    return m->fault == NULL;
}

static int64_t lowest(int64_t span)
{
    return span < 0 ? span : 0;
}

static int64_t highest(int64_t span)
{
    return span > 0 ? span : 0;
}

/* Whether the channels of a rectangle of pixels from `base` on are all in the region. */
static int tile_fits(const ref_map *map, int64_t base, int32_t height, int32_t width, int32_t depth)
{
    const int64_t column = map->bricks ? (int64_t)BRICK * map->bytes : map->stride_x;
    const int64_t down = (height - 1) * map->stride_y;
    const int64_t across = (width - 1) * column;
    int64_t inner = (int64_t)(depth - 1) * map->bytes;
    int64_t bricks = 0;
    if (map->bricks) {
        inner = (int64_t)((depth < BRICK ? depth : BRICK) - 1) * map->bytes;
        bricks = (int64_t)((depth - 1) / BRICK) * map->stride_c;
    }
    const int64_t low = base + lowest(down) + lowest(across) + lowest(bricks);
    const int64_t high = base + highest(down) + highest(across) + highest(bricks) + inner + map->bytes;
    return low >= 0 && (uint64_t)high <= map->memory_bytes;
}

static int32_t smaller(int32_t a, int32_t b)
{
    return a < b ? a : b;
}

int ref_map_check(ref_machine *m, const ref_map *map, ref_shape shape)
{
    const int32_t left = smaller(shape.width, map->width0);
    const int32_t upper0 = smaller(shape.height, map->height0);
    const int32_t upper1 = smaller(shape.height, map->height1);
    if (shape.height < 1 || shape.width < 1 || shape.depth < 1) {
        return ref_fail(m, "a tensor is empty");
    }
    const uint64_t plane = (uint64_t)shape.height * (uint64_t)shape.width;
    if (plane > map->memory_bytes || plane * (uint64_t)shape.depth > map->memory_bytes) {
        return ref_fail(m, "a tensor is larger than its memory region");
    }
    int fits = tile_fits(map, map->base[0], upper0, left, shape.depth);
    if (upper0 < shape.height) {
        fits = fits && tile_fits(map, map->base[2], shape.height - upper0, left, shape.depth);
    }
    if (left < shape.width) {
        fits = fits && tile_fits(map, map->base[1], upper1, shape.width - left, shape.depth);
    }
    if (left < shape.width && upper1 < shape.height) {
        fits = fits && tile_fits(map, map->base[3], shape.height - upper1, shape.width - left, shape.depth);
    }
    return fits ? 1 : ref_fail(m, "a tensor reaches outside of its memory region");
}

int64_t ref_map_pixel(const ref_map *map, int32_t y, int32_t x)
{
    const int64_t column = map->bricks ? (int64_t)BRICK * map->bytes : map->stride_x;
    int tile = 0;
    if (x >= map->width0) {
        tile = y >= map->height1 ? 3 : 1;
        y -= tile == 3 ? map->height1 : 0;
        x -= map->width0;
    } else if (y >= map->height0) {
        tile = 2;
        y -= map->height0;
    }
    return map->base[tile] + y * map->stride_y + x * column;
}

int64_t ref_map_channel(const ref_map *map, int32_t c)
{
    if (map->bricks) {
        return (int64_t)(c / BRICK) * map->stride_c + (int64_t)(c % BRICK) * map->bytes;
    }
    return (int64_t)c * map->bytes;
}

int64_t ref_load(const uint8_t *from, int32_t bytes, int is_signed)
{
    uint32_t value = from[0];
    if (bytes > 1) {
        value |= (uint32_t)from[1] << 8;
    }
    if (bytes > 2) {
        value |= (uint32_t)from[2] << 16 | (uint32_t)from[3] << 24;
    }
    return is_signed ? ref_signed(value, 8 * bytes) : (int64_t)value;
}

void ref_store(uint8_t *to, int32_t bytes, int64_t value)
{
    const uint64_t bits = (uint64_t)value;
    for (int32_t i = 0; i < bytes; ++i) {
        to[i] = (uint8_t)(bits >> (8 * i));
    }
}

int64_t ref_source_value(const ref_source *source, int32_t y, int32_t x, int32_t c)
{
    if (source->is_scalar) {
        return source->scalar - source->zero_point;
    }
    if (source->chain != NULL) {
        const ref_chain *chain = source->chain;
        const size_t place =
            ((size_t)y * (size_t)chain->shape.width + (size_t)x) * (size_t)chain->shape.depth + (size_t)c;
        const int32_t value = chain->data[place];
        return (chain->is_unsigned ? (int64_t)(uint32_t)value : (int64_t)value) - source->zero_point;
    }
    const ref_map *map = &source->map;
    const uint8_t *from = map->memory + ref_map_pixel(map, y, x) + ref_map_channel(map, c);
    return ref_load(from, map->bytes, map->is_signed) - source->zero_point;
}

int ref_source_of(ref_machine *m, int which, ref_shape shape, ref_source *source)
{
    memset(source, 0, sizeof *source);
    if (!ref_map_of(m, which, &source->map) || !ref_map_check(m, &source->map, shape)) {
        return 0;
    }
    source->zero_point = source->map.zero_point;
    source->shape = shape;
    return 1;
}

/* One row of bytes; the on-chip memory keeps nothing but its tables. */
static int copy(ref_machine *m, uint32_t source, int64_t start, uint32_t target, int64_t end, int64_t length)
{
    if ((source >> 8 & 1u) != 0u) {
        return ref_fail(m, "DMA reads the memory of tables");
    }
    const uint8_t *from = ref_bytes(m, source, start, length);
    if (from == NULL) {
        return 0;
    }
    if ((target >> 8 & 1u) == 0u) {
        uint8_t *to = ref_bytes(m, target, end, length);
        if (to == NULL) {
            return 0;
        }
        if ((target & 7u) == 0u) {
            return ref_fail(m, "DMA writes into read-only memory");
        }
        memmove(to, from, (size_t)length);
        return 1;
    }
    if (end < 0 || end + length > (int64_t)m->table_bytes) {
        return ref_fail(m, "DMA writes outside of the memory of tables");
    }
    const int64_t first = (int64_t)m->table_bytes - REF_TABLES;
    const int64_t skipped = end < first ? first - end : 0;
    if (skipped < length) {
        memcpy(m->tables + (end + skipped - first), from + skipped, (size_t)(length - skipped));
    }
    return 1;
}

static void dma55(ref_machine *m)
{
    const uint32_t source = ref_brief(m, DMA0_SRC_REGION);
    const uint32_t target = ref_brief(m, DMA0_DST_REGION);
    const uint32_t dimensions = target >> 9 & 3u;
    const int64_t length = ref_address(m, DMA0_LEN);
    const int64_t start = ref_address(m, DMA0_DST);
    const int64_t rows = dimensions != 0u ? (int64_t)ref_brief(m, DMA0_SIZE0) : 1;
    const int64_t row_step = dimensions != 0u ? length + ref_stride(m, DMA0_SRC_STRIDE0) : 0;
    const int64_t planes = dimensions == 2u ? (int64_t)ref_brief(m, DMA0_SIZE1) : 1;
    const int64_t plane_step = dimensions == 2u ? length * rows + ref_stride(m, DMA0_SRC_STRIDE1) : 0;
    int64_t from = ref_address(m, DMA0_SRC);
    for (int64_t plane = 0; plane < planes && m->fault == NULL; ++plane) {
        for (int64_t row = 0; row < rows && m->fault == NULL; ++row) {
            (void)copy(m, source, from, target, start + plane * plane_step + row * row_step, length);
            from += length;
        }
    }
}

/* Which row is meant: the running one, or the one that the index at an address names. */
static int64_t chosen_row(ref_machine *m, int64_t address)
{
    const uint8_t *raw = ref_bytes(m, ref_brief(m, DMA0_IDX_REGION), address, 4);
    const int64_t index = raw != NULL ? ref_load(raw, 4, 1) : 0;
    if (index < 0 || index > ref_address(m, DMA0_IDX_MAX)) {
        (void)ref_fail(m, "an index is outside of what it chooses from");
    }
    return index;
}

static void dma85(ref_machine *m)
{
    const uint32_t source = ref_brief(m, DMA0_SRC_REGION);
    const uint32_t target = ref_brief(m, DMA0_DST_REGION);
    const uint32_t dimensions = source >> 9 & 3u;
    const int gathers = (source >> 11 & 1u) != 0u;
    const int scatters = (target >> 11 & 1u) != 0u;
    const int indexed = gathers || scatters;
    const int64_t length = ref_address(m, DMA0_LEN);
    const int64_t rows = dimensions != 0u || indexed ? (int64_t)ref_brief(m, DMA0_SIZE0) : 1;
    const int64_t planes = dimensions == 2u ? (int64_t)ref_brief(m, DMA0_SIZE1) : 1;
    const int64_t source_row = dimensions > 0u || gathers ? ref_stride(m, DMA0_SRC_STRIDE0) : 0;
    const int64_t target_row = dimensions > 0u || scatters ? ref_stride(m, DMA0_DST_STRIDE0) : 0;
    const int64_t source_plane = dimensions > 1u ? ref_stride(m, DMA0_SRC_STRIDE1) : 0;
    const int64_t target_plane = dimensions > 1u ? ref_stride(m, DMA0_DST_STRIDE1) : 0;
    const int64_t skip = dimensions == 2u && indexed ? ref_address(m, DMA0_IDX_SKIP1) : 0;
    const int64_t index = indexed ? ref_address(m, DMA0_IDX) : 0;
    const int64_t from = ref_address(m, DMA0_SRC);
    const int64_t to = ref_address(m, DMA0_DST);
    for (int64_t plane = 0; plane < planes && m->fault == NULL; ++plane) {
        for (int64_t row = 0; row < rows && m->fault == NULL; ++row) {
            const int64_t chosen = indexed ? chosen_row(m, index + (plane * rows + row) * 4 + plane * skip) : row;
            if (m->fault == NULL) {
                (void)copy(m, source, from + plane * source_plane + (gathers ? chosen : row) * source_row, target,
                           to + plane * target_plane + (scatters ? chosen : row) * target_row, length);
            }
        }
    }
}

void ref_dma(ref_machine *m)
{
    const uint32_t rows = ref_is_written(m, DMA0_SIZE0) ? ref_brief(m, DMA0_SIZE0) : 1u;
    const uint32_t planes = ref_is_written(m, DMA0_SIZE1) ? ref_brief(m, DMA0_SIZE1) : 1u;
    if (((uint64_t)rows * planes) << 18 > ETHOSU_REFERENCE_WORK) {
        (void)ref_fail(m, "it is larger than any that an NPU executes");
    } else if (m->product == REF_U85) {
        dma85(m);
    } else {
        dma55(m);
    }
}
