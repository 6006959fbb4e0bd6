/* Switches, traps, and the life of jobs. */
#define _GNU_SOURCE
#include <execinfo.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "fake.h"

state_t fake;
pthread_mutex_t fake_lock = PTHREAD_MUTEX_INITIALIZER;

const char *switched_text(const char *name, const char *otherwise)
{
    char full[64];
    snprintf(full, sizeof full, "ANYNPU_FAKE_NOE_%s", name);
    const char *value = getenv(full);
    return value && *value ? value : otherwise;
}

long switched(const char *name) { return strtol(switched_text(name, "0"), 0, 0); }

int64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

void wait_ns(int64_t ns)
{
    struct timespec t = {ns / 1000000000, ns % 1000000000};
    while (ns > 0 && nanosleep(&t, &t) != 0) { }
}

uint32_t refuse(const char *call, uint32_t status)
{
    void *frames[8];
    printf("[UMD ERROR] %s: status 0x%x\n", call, status);
    fflush(stdout);
    backtrace_symbols_fd(frames, backtrace(frames, 8), STDOUT_FILENO);
    return status;
}

_Noreturn void trap(const char *call, const char *why)
{
    fprintf(stderr, "fake libnoe: %s: %s\n", call, why);
    abort();
}

/* The journal: one line a call, with the thread that made it. */
static void record(const char *call)
{
    const char *path = switched_text("JOURNAL", 0);
    FILE *file = path ? fopen(path, "a") : 0;
    if (file) {
        fprintf(file, "%d %d %s\n", (int)getpid(), (int)gettid(), call);
        fclose(file);
    }
}

uint32_t enter(const char *call, const context_handler_t *ctx)
{
    record(call);
    if (switched("NOISY")) {
        printf("[UMD INFO] %s\n", call);
        if (write(STDOUT_FILENO, "[UMD INFO] unbuffered\n", 22) != 22)
            abort();
    }
    if (!ctx)
        return refuse(call, NOE_NULL_PTR);
    if (ctx != &fake.handle || ctx->handle != CONTEXT)
        return refuse(call, NOE_INVALID_CTX);
    if (switched("ONE_THREAD") && !pthread_equal(pthread_self(), fake.owner))
        trap(call, "called from another thread than noe_init_context");
    return NOE_SUCCESS;
}

uint64_t graph_id(uint32_t index) { return (uint64_t)(index + 1) << 32; }

graph_t *graph_of(uint64_t id)
{
    uint64_t index = (id >> 32) - 1;
    return (uint32_t)id == 0 && index < MOST_GRAPHS && fake.used[index] ? &fake.graphs[index] : 0;
}

/* Job ids are given out again after a clean, as the real library does: an old one may mean another job. */
job_t *job_of(const char *call, uint64_t id)
{
    uint64_t index = (uint32_t)id - 1u;
    if (!id || index >= MOST_JOBS || fake.jobs[index].state == JOB_FREE || fake.jobs[index].graph + 1 != id >> 32)
        return 0;
    if (fake.jobs[index].state == JOB_CLEANED) {
        if (switched("TRAP_CLEANED"))
            trap(call, "the job was cleaned");
        return 0;
    }
    return &fake.jobs[index];
}

void check_buffer(const char *call, const graph_t *graph)
{
    if (graph_checksum(graph) != graph->checksum)
        trap(call, "the buffer of the graph was changed or freed before noe_unload_graph");
}

uint32_t job_new(const char *call, uint32_t graph, const job_config_t *cfg, uint32_t *index)
{
    if (!cfg)
        trap(call, "the configuration is NULL (the real library crashes)");
    if (!cfg->conf_j_npu)
        return NOE_NULL_PTR;
    if ((cfg->conf_j_npu->misc >> 8 & 0xf) > 1)
        return NOE_INVALID_QOS;
    check_buffer(call, &fake.graphs[graph]);
    if (fake.graphs[graph].lacks_private_data)
        trap(call, "a subgraph has no private data (the real library crashes)");
    long most = switched("MOST_JOBS");
    uint32_t free_one = 0;
    while (free_one < MOST_JOBS && fake.jobs[free_one].state > JOB_CLEANED)
        free_one++;
    if (free_one >= (uint32_t)(most ? most : MOST_JOBS))
        return NOE_BUF_ALLOC_FAIL;
    job_t *job = &fake.jobs[free_one];
    *job = (job_t){.state = JOB_READY, .graph = graph};
    for (int kind = 0; kind < 2; kind++)
        for (uint32_t i = 0; i < fake.graphs[graph].counts[kind]; i++)
            job->tensors[kind][i] = calloc(1, fake.graphs[graph].tensors[kind][i].size + 64u);
    *index = free_one;
    return NOE_SUCCESS;
}

void job_drop(job_t *job)
{
    for (int kind = 0; kind < 2; kind++)
        for (uint32_t i = 0; i < MOST_TENSORS; i++) {
            free(job->tensors[kind][i]);
            job->tensors[kind][i] = 0;
        }
    job->state = JOB_CLEANED;
}

/* True while the file that a switch names is there: for what is to happen to a library that is loaded already. */
static bool present(const char *name)
{
    const char *path = switched_text(name, 0);
    return path && access(path, F_OK) == 0;
}

/* Computes; the inputs are overwritten afterwards, as a device does whose buffers share memory. */
static uint32_t compute(job_t *job)
{
    graph_t *graph = &fake.graphs[job->graph];
    if (graph->execute(graph, job->tensors[NOE_INPUT], job->tensors[NOE_OUTPUT]) != 0)
        return NOE_JOB_EXCEPTION;
    for (uint32_t i = 0; i < graph->counts[NOE_OUTPUT] && switched("ZERO"); i++)
        memset(job->tensors[NOE_OUTPUT][i], 0, graph->tensors[NOE_OUTPUT][i].size);
    for (uint32_t i = 0; i < graph->counts[NOE_OUTPUT] && present("SPOILED"); i++)
        job->tensors[NOE_OUTPUT][i][graph->tensors[NOE_OUTPUT][i].size / 2] ^= 1;
    if (!switched("KEEP_INPUTS"))
        for (uint32_t i = 0; i < graph->counts[NOE_INPUT]; i++)
            memset(job->tensors[NOE_INPUT][i], 0xa5, graph->tensors[NOE_INPUT][i].size < 4096
                                                         ? graph->tensors[NOE_INPUT][i].size
                                                         : 4096);
    return NOE_SUCCESS;
}

/* True for the inference that a switch such as EXCEPTION=3 names, and for all of them with -1. */
static bool struck(const char *name)
{
    long which = switched(name);
    return which < 0 || (which > 0 && (uint64_t)which == fake.inferences);
}

/* Waits as the real library does: other threads may call meanwhile, and even give the context back. */
static bool wait_unlocked(int64_t ns)
{
    pthread_mutex_unlock(&fake_lock);
    wait_ns(ns);
    pthread_mutex_lock(&fake_lock);
    return fake.handle.handle == CONTEXT;
}

uint32_t job_run(const char *call, job_t *job, int32_t timeout_ms)
{
    fake.inferences++;
    check_buffer(call, &fake.graphs[job->graph]);
    if (struck("CRASH"))
        raise(SIGSEGV);
    while (struck("STUCK"))
        (void)wait_unlocked(1000000000);
    if (struck("HANG") || present("HUNG")) {
        if (!wait_unlocked(timeout_ms > 0 ? timeout_ms * 1000000ll : INT64_MAX))
            return NOE_INVALID_CTX;
        job->state = JOB_BROKEN;
        return NOE_TIMEOUT;
    }
    if (struck("EXCEPTION")) {
        job->state = JOB_READY;
        return NOE_JOB_EXCEPTION;
    }
    if (!wait_unlocked(switched("DELAY_US") * 1000ll))
        return NOE_INVALID_CTX;
    uint32_t status = compute(job);
    job->state = status == NOE_SUCCESS ? JOB_DONE : JOB_READY;
    return status;
}

/* Ends an asynchronous run whose time has come. */
uint32_t job_finish(const char *call, job_t *job)
{
    fake.inferences++;
    check_buffer(call, &fake.graphs[job->graph]);
    uint32_t status = struck("EXCEPTION") ? NOE_JOB_EXCEPTION : compute(job);
    job->outcome = status == NOE_SUCCESS ? NOE_JOB_DONE : NOE_JOB_IS_EXCEPTION;
    job->state = status == NOE_SUCCESS ? JOB_DONE : JOB_READY;
    return status;
}

/* A process that ends without noe_deinit_context ends badly, as with the real library. */
__attribute__((destructor)) static void unclean(void)
{
    if (fake.handle.handle != CONTEXT || switched("CLEAN_EXIT"))
        return;
    for (uint32_t i = 0; i < MOST_GRAPHS; i++)
        if (fake.used[i])
            abort();
    signal(SIGSEGV, SIG_DFL);
    raise(SIGSEGV);
}
