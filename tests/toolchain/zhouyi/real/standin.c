/* A /dev/aipu for the vendor's real libnoe.so: preload it, and the library finds a Zhouyi Z3 of three cores.

   It answers the requests of the kernel driver's public interface (armchina_aipu.h, not needed to compile it) from a
   memory file. A job computes what the fake library's executor `mix` computes, for programs of anynpu's own writer:
   their read-only data begins with a mark, and the library fills in the addresses of inputs and outputs.

   STANDIN_LOG=FILE gets a line for every request. STANDIN_STATE is the state that jobs end in, STANDIN_DELAY_MS what
   they take; with STANDIN_HANG=1 they never end, with STANDIN_ZERO=1 they write zeros. STANDIN_ISA is the version of the
   device. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define NODE "/dev/aipu"
#define MOST_JOBS 64
#define MEMORY (1ull << 31)
#define BASE 0x10000000ull /* the device's address of the first byte of its memory */

struct core_counts { uint32_t cores, enabled, tecs; };
struct partition { uint32_t id, arch, version, config; uint64_t registers; uint32_t clusters; struct core_counts each[8]; };
struct capability {
    uint32_t partitions, asids;
    uint64_t asid_base[32];
    uint32_t same;
    uint64_t dtcm;
    uint32_t dtcm_size, gm0, gm1;
    struct partition partition;
};
struct place { uint64_t address, offset, bytes; uint8_t region, asid; };
struct request { uint64_t bytes; uint32_t align_in_page, kind; uint8_t region, asid; struct place place; };
struct job {
    uint32_t defer, compatible, core, partition, trigger, arch, version, config, pc, handler, data0, data1;
    uint64_t id;
};
struct ended { uint64_t job; uint32_t thread, state; uint8_t profile[40]; };
struct query { uint32_t most, of_this_thread; struct ended *ended; uint32_t count; };
_Static_assert(sizeof(struct partition) == 128 && sizeof(struct request) == 56 && sizeof(struct ended) == 56, "layout");

static int device = -1;
static uint8_t *memory;
static uint64_t next_free = 4096;
static struct { uint64_t id; uint32_t thread; int64_t ends_ms; } jobs[MOST_JOBS];
static unsigned pending;
static uint16_t next_group = 1;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static long number(const char *name) { const char *text = getenv(name); return text ? strtol(text, 0, 0) : 0; }

static int64_t now_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000ll + t.tv_nsec / 1000000;
}

static void record(const char *form, ...)
{
    const char *path = getenv("STANDIN_LOG");
    FILE *file = path ? fopen(path, "a") : 0;
    if (!file)
        return;
    va_list values;
    va_start(values, form);
    vfprintf(file, form, values);
    va_end(values);
    fclose(file);
}

static void describe(struct partition *p)
{
    memset(p, 0, sizeof *p);
    p->version = number("STANDIN_ISA") ? (uint32_t)number("STANDIN_ISA") : 5;
    p->config = 1204;
    p->clusters = 1;
    p->each[0] = (struct core_counts){3, 3, 4};
}

static void allocate(struct request *r)
{
    uint64_t step = 4096ull * (r->align_in_page ? r->align_in_page : 1);
    next_free = (next_free + step - 1) / step * step;
    r->place = (struct place){BASE + next_free, next_free, (r->bytes + 4095) & ~4095ull, r->region, r->asid};
    record("allocate %llu bytes of kind %u at %llx\n", (unsigned long long)r->bytes, r->kind,
           (unsigned long long)r->place.address);
    next_free += r->place.bytes;
}

/* Forgets what lay there, so that a program that was unloaded is not found again. */
static void release(const struct place *place)
{
    uint64_t at = place->address - BASE;
    if (at < next_free && place->bytes <= next_free - at)
        memset(memory + at, 0, place->bytes);
}

/* The read-only data of a program of ours: the mark, the counts, then size and address of every tensor. */
struct tensors { char mark[4]; uint32_t inputs, outputs; struct { uint32_t bytes, address; } each[]; };

/* What the executor `mix` of the fake gives, wherever a program of ours lies in the device's memory. */
static void compute(void)
{
    for (uint64_t page = 0; page < next_free; page += 4096) {
        const struct tensors *t = (const void *)(memory + page);
        if (memcmp(t->mark, "anpu", 4) != 0 || !t->inputs)
            continue;
        for (uint32_t o = 0; o < t->outputs; o++) {
            const uint8_t *in = memory + (t->each[o % t->inputs].address - BASE);
            uint8_t *out = memory + (t->each[t->inputs + o].address - BASE);
            for (uint32_t i = 0; i < t->each[t->inputs + o].bytes; i++)
                out[i] = number("STANDIN_ZERO") ? 0 : (uint8_t)(in[i % t->each[o % t->inputs].bytes] * 31u + i * 7u + o + 3u);
        }
    }
}

static void schedule(const struct job *job)
{
    record("schedule %llx\n", (unsigned long long)job->id);
    compute();
    if (pending < MOST_JOBS) {
        jobs[pending].id = job->id;
        jobs[pending].thread = (uint32_t)syscall(SYS_gettid);
        jobs[pending++].ends_ms = number("STANDIN_HANG") ? INT64_MAX : now_ms() + number("STANDIN_DELAY_MS");
    }
}

/* Ends the jobs whose time has come, of all threads or of this one. */
static void report(struct query *q)
{
    unsigned kept = 0;
    q->count = 0;
    for (unsigned i = 0; i < pending; i++) {
        int mine = !q->of_this_thread || jobs[i].thread == (uint32_t)syscall(SYS_gettid);
        if (mine && q->count < q->most && jobs[i].ends_ms <= now_ms()) {
            uint32_t state = number("STANDIN_STATE") ? (uint32_t)number("STANDIN_STATE") : 1;
            q->ended[q->count++] = (struct ended){.job = jobs[i].id, .thread = jobs[i].thread, .state = state};
        } else {
            jobs[kept++] = jobs[i];
        }
    }
    pending = kept;
}

static int answer(unsigned nr, void *argument)
{
    switch (nr) {
    case 0: {
        struct capability *c = argument;
        memset(c, 0, sizeof *c);
        c->partitions = 1, c->asids = 4, c->same = 1, c->gm0 = c->gm1 = 4u << 20;
        describe(&c->partition);
        return 0;
    }
    case 1: describe(argument); return 0;
    case 2: allocate(argument); return 0;
    case 3: release(argument); return 0;
    case 6: schedule(argument); return 0;
    case 7: report(argument); return 0;
    case 18: strcpy(argument, "5.11.0"); return 0;
    case 21: *(int *)argument = 1; return 0;
    case 22: ((uint16_t *)argument)[1] = next_group++; return 0;
    default: record("request %u\n", nr); return 0;
    }
}

int ioctl(int fd, unsigned long request, ...)
{
    va_list values;
    va_start(values, request);
    void *argument = va_arg(values, void *);
    va_end(values);
    if (fd != device || device < 0)
        return (int)syscall(SYS_ioctl, fd, request, argument);
    pthread_mutex_lock(&lock);
    int status = answer(request & 0xff, argument);
    pthread_mutex_unlock(&lock);
    return status;
}

int open(const char *path, int flags, ...)
{
    va_list values;
    va_start(values, flags);
    int mode = va_arg(values, int);
    va_end(values);
    if (strcmp(path, NODE) != 0)
        return (int)syscall(SYS_openat, AT_FDCWD, path, flags, mode);
    device = memfd_create("aipu", 0);
    if (device < 0 || ftruncate(device, MEMORY) != 0)
        return -1;
    memory = mmap(0, MEMORY, PROT_READ | PROT_WRITE, MAP_SHARED, device, 0);
    record("open by %d\n", (int)getpid());
    return device;
}

int close(int fd)
{
    if (fd == device && fd >= 0) {
        record("close by %d\n", (int)getpid());
        device = -1;
    }
    return (int)syscall(SYS_close, fd);
}

int poll(struct pollfd *fds, nfds_t count, int timeout_ms)
{
    int (*real)(struct pollfd *, nfds_t, int) = dlsym(RTLD_NEXT, "poll");
    if (count != 1 || fds->fd != device || device < 0)
        return real(fds, count, timeout_ms);
    int64_t until = timeout_ms < 0 ? INT64_MAX : now_ms() + timeout_ms;
    do {
        pthread_mutex_lock(&lock);
        int ready = 0;
        for (unsigned i = 0; i < pending; i++)
            ready = ready || jobs[i].ends_ms <= now_ms();
        pthread_mutex_unlock(&lock);
        if (ready) {
            fds->revents = POLLIN;
            return 1;
        }
        real(0, 0, 1);
    } while (now_ms() < until);
    return 0;
}
