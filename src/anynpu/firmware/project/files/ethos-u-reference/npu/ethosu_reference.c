/* Arm's driver calls, answered by executing the command stream on the processor: a reference for checking what the
   firmware computes where there is no NPU. Counts and times of this code are not those of an NPU. */
#include "ethosu_reference.h"

#include <string.h>

#include "ethosu_driver.h"
#include "ethosu_fault.h"

enum { ACTION_CONFIGURE = 1, ACTION_COMMANDS = 2, ACTION_NOTHING = 5 };
enum { OP_STOP = 0x00, OP_IRQ = 0x01, OP_DMA_WAIT = 0x11, OP_KERNEL_WAIT = 0x12, OP_PMU_MASK = 0x13 };

#if ETHOSU_REFERENCE_FAST_BYTES > 0
static uint8_t fast_memory_of_npu[ETHOSU_REFERENCE_FAST_BYTES] __attribute__((section(".bss.npu_working")));
static struct ethosu_driver unset = {fast_memory_of_npu, sizeof fast_memory_of_npu};
#else
static struct ethosu_driver unset;
#endif
static struct ethosu_driver *registered = &unset;
static ref_machine machine;
static union {
    uint8_t bytes[ETHOSU_REFERENCE_BYTES];
    int64_t alignment;
} working __attribute__((section(".bss.npu_working")));

static const char *fault_text;
static uint32_t fault_operation;

const char *ethosu_reference_fault(uint32_t *operation)
{
    *operation = fault_operation;
    return fault_text;
}

int ethosu_init(struct ethosu_driver *drv, void *const base_address, const void *fast_memory,
                const size_t fast_memory_size, uint32_t secure_enable, uint32_t privilege_enable)
{
    const uintptr_t address = (uintptr_t)fast_memory; /* The driver's interface has a pointer to const here. */
    (void)base_address;
    (void)secure_enable;
    (void)privilege_enable;
    drv->fast_memory = (uint8_t *)address;
    drv->fast_memory_size = fast_memory_size;
    registered = drv;
    return 0;
}

void ethosu_deinit(struct ethosu_driver *drv)
{
    if (registered == drv) {
        registered = &unset;
    }
}

void ethosu_irq_handler(struct ethosu_driver *drv)
{
    (void)drv; /* Nothing interrupts. */
}

struct ethosu_driver *ethosu_reserve_driver(void)
{
    return registered;
}

void ethosu_release_driver(struct ethosu_driver *drv)
{
    (void)drv;
}

static int is_register(uint32_t code)
{
    static const uint16_t gaps[] = {0x106, 0x10E, 0x110, 0x119, 0x11D, 0x11E, 0x182,
                                    0x183, 0x184, 0x186, 0x187, 0x188, 0x18E};
    for (size_t i = 0; i < sizeof gaps / sizeof *gaps; ++i) {
        if (code == gaps[i]) {
            return 0;
        }
    }
    return (code >= IFM_PAD_TOP && code <= DMA0_IDX_REGION) || (code >= IFM2_BROADCAST && code <= IFM2_REGION);
}

static int is_long_register(uint32_t code)
{
    return code <= IFM_STRIDE_C || (code >= OFM_BASE0 && code <= OFM_STRIDE_C) ||
           (code >= WEIGHT_BASE && code <= OP_SCALAR) || (code >= DMA0_SRC && code <= DMA0_IDX_SKIP1) ||
           (code >= IFM2_BASE0 && code <= IFM2_STRIDE_C) || (code >= WEIGHT1_BASE && code <= RESIZE_Y);
}

static void execute(ref_machine *m, uint32_t code, uint32_t mode)
{
    if (m->operation == 0u) {
        const int parallel = ref_is_written(m, PARALLEL_MODE) && ref_brief(m, PARALLEL_MODE) != 0u;
        m->cores = parallel && m->product == REF_U65 ? 2 : 1;
    }
    switch (code) {
    case REF_CONV:
    case REF_DEPTHWISE:
        ref_convolution(m, (int)code, (int)mode);
        break;
    case REF_POOL:
        ref_pool(m, (int)mode);
        break;
    case REF_ELEMENTWISE:
        ref_elementwise(m, (int)mode);
        break;
    case REF_RESIZE:
        ref_resize(m, (int)mode);
        break;
    default:
        ref_dma(m);
        break;
    }
    if (m->fault == NULL) {
        ++m->operation;
    }
}

static uint32_t word_at(const uint8_t *bytes, uint32_t word)
{
    const uint8_t *from = bytes + (size_t)word * 4u;
    return (uint32_t)from[0] | (uint32_t)from[1] << 8 | (uint32_t)from[2] << 16 | (uint32_t)from[3] << 24;
}

/* One word that is no part of a long command; 1 where the stream stops. */
static int short_command(ref_machine *m, uint32_t code, uint32_t parameter)
{
    switch (code) {
    case OP_STOP:
        return 1;
    case OP_IRQ:
    case OP_DMA_WAIT:
    case OP_KERNEL_WAIT:
    case OP_PMU_MASK:
        return 0; /* What is executed in order waits for nothing. */
    case REF_CONV:
    case REF_DEPTHWISE:
    case REF_POOL:
    case REF_ELEMENTWISE:
    case REF_RESIZE:
    case REF_DMA:
        execute(m, code, parameter);
        return 0;
    default:
        break;
    }
    if (!is_register(code)) {
        return ref_fail(m, "the command stream has a word that is not a command");
    }
    m->brief[code - REF_SHORT_FIRST] = (uint16_t)parameter;
    m->brief_written[code - REF_SHORT_FIRST] = 1;
    return 0;
}

static void run_commands(ref_machine *m, const uint8_t *commands, uint32_t words)
{
    for (uint32_t at = 0; at < words && m->fault == NULL; ++at) {
        const uint32_t word = word_at(commands, at);
        const uint32_t code = word & 0x3FFu;
        const uint32_t parameter = word >> 16;
        const uint32_t kind = word >> 14 & 3u;
        if (kind == 1u && at + 1u < words && is_long_register(code)) {
            ++at;
            m->wide[code] = (uint64_t)word_at(commands, at) | (uint64_t)parameter << 32;
            m->wide_written[code] = 1;
        } else if (kind != 0u) {
            (void)ref_fail(m, "the command stream has a word that is not a command");
        } else if (short_command(m, code, parameter)) {
            return;
        }
    }
    (void)ref_fail(m, "the command stream does not end with a stop");
}

static void configure(ref_machine *m, uint32_t config)
{
    m->product = (int)(config >> 28);
    m->macs = (int32_t)(1u << (config & 15u));
    m->cores = 1;
    m->table_bytes = 48u << 10;
    if (m->product == REF_U85) {
        m->table_bytes = REF_TABLES;
    } else if (m->macs <= 64) {
        m->table_bytes = 16u << 10;
    } else if (m->macs == 128) {
        m->table_bytes = 24u << 10;
    }
}

static void run_payload(ref_machine *m, const uint8_t *payload, uint32_t words)
{
    m->product = -1;
    for (uint32_t at = 1; at < words && m->fault == NULL;) {
        const uint32_t word = word_at(payload, at);
        const uint32_t action = word & 0xFFu;
        if (action == ACTION_CONFIGURE && words - at > 2u) {
            configure(m, word_at(payload, at + 1u));
            at += 3u;
        } else if (action == ACTION_NOTHING) {
            at += 1u;
        } else if (action == ACTION_COMMANDS && m->product >= REF_U55 && m->product <= REF_U85) {
            const uint32_t length = word >> 16 | (word >> 8 & 0xFFu) << 16;
            if (length > words - at - 1u) {
                (void)ref_fail(m, "the command stream is cut off");
                return;
            }
            run_commands(m, payload + ((size_t)at + 1u) * 4u, length);
            return;
        } else {
            (void)ref_fail(m, "the payload has an unknown driver action");
        }
    }
    (void)ref_fail(m, "the payload has no commands");
}

static void set_regions(ref_machine *m, const uint64_t *base_addr, const size_t *base_addr_size, int count)
{
    for (int i = 0; i < count && i < REF_REGIONS; ++i) {
        m->region[i] = (uint8_t *)(uintptr_t)base_addr[i];
        m->region_bytes[i] = base_addr_size[i];
    }
}

int ethosu_invoke_v3(struct ethosu_driver *drv, const void *custom_data_ptr, const int custom_data_size,
                     uint64_t *const base_addr, const size_t *base_addr_size, const int num_base_addr, void *user_arg)
{
    ref_machine *m = &machine;
    (void)user_arg;
    memset(m, 0, sizeof *m);
    m->work = working.bytes;
    m->work_bytes = (uint32_t)sizeof working.bytes & ~7u;
    if (drv->fast_memory != NULL && num_base_addr > 2) {
        if (base_addr_size[2] > drv->fast_memory_size) {
            (void)ref_fail(m, "the fast memory is too small");
        }
        base_addr[2] = (uintptr_t)drv->fast_memory;
    }
    set_regions(m, base_addr, base_addr_size, num_base_addr);
    if (custom_data_size < 4 || custom_data_size % 4 != 0 || memcmp(custom_data_ptr, "COP1", 4) != 0) {
        (void)ref_fail(m, "the payload does not begin with COP1");
    }
    if (m->fault == NULL) {
        run_payload(m, custom_data_ptr, (uint32_t)custom_data_size / 4u);
    }
    fault_text = m->fault;
    fault_operation = m->operation;
    return m->fault == NULL ? 0 : -1;
}
