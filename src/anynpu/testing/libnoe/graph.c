/* Reads the ELF file inside a .cix as far as a caller can see it: its machine, its target and its tensors. */
#include <string.h>

#include "graph.h"

#define ELF_MACHINE 0x29au
#define ISA_V3 5u
#define PART_BYTES 48u /* of a sub-section in fmlist, without what ro_count adds */
#define SUBGRAPH_BYTES 60u /* of a subgraph, without its precursors and private buffers */
#define PRIVATE_DATA_SIZE 40u

typedef struct { const uint8_t *at; uint32_t left; } span_t;

static uint32_t u32(const uint8_t *at) { uint32_t v; memcpy(&v, at, 4); return v; }
static uint32_t u16(const uint8_t *at) { return (uint32_t)at[0] | (uint32_t)at[1] << 8; }
static bool inside(const graph_t *g, uint64_t offset, uint64_t size) { return offset + size <= g->bytes; }

static const uint8_t *take(span_t *from, uint32_t bytes)
{
    if (from->left < bytes)
        return 0;
    const uint8_t *at = from->at;
    from->at += bytes;
    from->left -= bytes;
    return at;
}

/* Finds a section by name; the headers have been checked. */
static bool section(const graph_t *g, const char *name, span_t *found)
{
    const uint8_t *elf = g->buffer;
    uint32_t table = u32(elf + 32), count = u16(elf + 48), names = u16(elf + 50);
    if (names >= count || !inside(g, table, 40ull * count))
        return false;
    uint32_t strings = u32(elf + table + 40 * names + 16), length = u32(elf + table + 40 * names + 20);
    if (!inside(g, strings, length))
        return false;
    for (uint32_t i = 0; i < count; i++) {
        const uint8_t *head = elf + table + 40 * i;
        uint32_t at = u32(head), size = (uint32_t)strlen(name) + 1;
        if (at > length || length - at < size || memcmp(elf + strings + at, name, size) != 0)
            continue;
        if (!inside(g, u32(head + 16), u32(head + 20)))
            return false;
        *found = (span_t){elf + u32(head + 16), u32(head + 20)};
        return true;
    }
    return false;
}

static bool note(span_t notes, const char *wanted, span_t *found)
{
    const uint8_t *head;
    while ((head = take(&notes, 12))) {
        uint32_t name_size = u32(head), size = u32(head + 4);
        if (name_size > notes.left || size > notes.left)
            return false;
        const uint8_t *name = take(&notes, (name_size + 3) & ~3u);
        const uint8_t *content = name ? take(&notes, (size + 3) & ~3u) : 0;
        if (!content)
            return false;
        if (strlen(wanted) <= name_size && strncmp((const char *)name, wanted, name_size) == 0) {
            *found = (span_t){content, size};
            return true;
        }
    }
    return false;
}

static bool part(graph_t *g, span_t *list)
{
    const uint8_t *p = take(list, PART_BYTES);
    if (!p || !take(list, 4 * u32(p + 44)) || u32(p + 44) > 1024)
        return false;
    uint32_t kind = u32(p + 8), id = u32(p + 12);
    if (kind > NOE_OUTPUT)
        return true;
    if (id >= MOST_TENSORS)
        return false;
    tensor_desc_t *d = &g->tensors[kind][id];
    *d = (tensor_desc_t){.id = id, .size = u32(p + 4), .zero_point = (int32_t)u32(p + 24), .data_type = u32(p + 16)};
    memcpy(&d->scale, p + 20, 4);
    if (g->counts[kind] < id + 1)
        g->counts[kind] = id + 1;
    return true;
}

static bool tensors(graph_t *g, span_t list)
{
    const uint8_t *head = take(&list, 12);
    uint32_t count = head ? u32(head + 8) : 0;
    for (uint32_t bss = 0; bss < count; bss++) {
        const uint8_t *sizes = take(&list, 16);
        if (!sizes)
            return false;
        for (uint64_t s = 0; s < (uint64_t)u32(sizes + 8) + u32(sizes + 12); s++) {
            const uint8_t *top = take(&list, 16);
            if (!top)
                return false;
            for (uint32_t i = 0; i < u32(top + 12); i++)
                if (!part(g, &list))
                    return false;
        }
    }
    return count > 0;
}

/* Reads the list of subgraphs as Arm China's parser does (ElfSubGraphDesc in parser_elf.h of Compass_NPU_Driver):
   60 bytes, so many precursors, a count of private buffers, and those. */
static bool subgraphs(graph_t *g, span_t list)
{
    const uint8_t *head = take(&list, 4);
    uint32_t count = head ? u32(head) : 0;
    for (uint32_t i = 0; i < count; i++) {
        const uint8_t *fixed = take(&list, SUBGRAPH_BYTES);
        uint32_t precursors = fixed ? u32(fixed + 56) : 0;
        if (!fixed || precursors > 1024 || !take(&list, 4 * precursors))
            return false;
        g->lacks_private_data = g->lacks_private_data || u32(fixed + PRIVATE_DATA_SIZE) == 0;
        const uint8_t *buffers = take(&list, 4);
        for (int32_t b = 0; buffers && b < (int32_t)u32(buffers); b++) {
            const uint8_t *top = take(&list, 16);
            for (uint32_t p = 0; top && p < u32(top + 12); p++) {
                const uint8_t *fields = take(&list, PART_BYTES);
                if (!fields || u32(fields + 44) > 1024 || !take(&list, 4 * u32(fields + 44)))
                    return false;
            }
            if (!top)
                return false;
        }
        if (!buffers)
            return false;
    }
    return count > 0;
}

uint32_t graph_checksum(const graph_t *g)
{
    uint32_t sum = 2166136261u, step = g->bytes > 1024 ? g->bytes / 1024 : 1;
    for (uint32_t i = 0; i < g->bytes; i += step)
        sum = (sum ^ g->buffer[i]) * 16777619u;
    return sum;
}

uint32_t graph_read(graph_t *g, const uint8_t *buffer, uint32_t bytes)
{
    memset(g, 0, sizeof *g);
    g->buffer = buffer;
    g->bytes = bytes;
    if (bytes == 0)
        return NOE_INVALID_SIZE;
    if (bytes < 52 || memcmp(buffer, "\x7f" "ELF", 4) != 0)
        return NOE_GVERSION_UNSUPPORTED;
    span_t text, notes, message, list, parts;
    if (u16(buffer + 18) != ELF_MACHINE || !section(g, ".text", &text) || !section(g, ".note.aipu", &notes))
        return NOE_INVALID_GBIN;
    if (!note(notes, "compilermsg", &message) || message.left < 16 || !note(notes, "fmlist", &list))
        return NOE_INVALID_GBIN;
    if (!note(notes, "subgraphs", &parts) || !subgraphs(g, parts))
        return NOE_INVALID_GBIN;
    g->build_version = u32(message.at + 4);
    g->device = u32(message.at + 8);
    if (((g->device >> 16) & 0xf) != ISA_V3)
        return NOE_TARGET_NOT_FOUND;
    if (!tensors(g, list) || executor_find(g) != 0)
        return NOE_INVALID_GBIN;
    g->checksum = graph_checksum(g);
    return NOE_SUCCESS;
}
