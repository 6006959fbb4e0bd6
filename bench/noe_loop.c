/* The loop that bench/noe_binding.py compares with: load, infer and get on one job, as short as C allows.
 *
 *     noe_loop LIBRARY PROGRAM INPUT_BYTES OUTPUT_BYTES RUNS     prints the nanoseconds of every run, one a line,
 *                                                                and last those of the CPU for all of them */
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

typedef struct { void *npu; } config_t;
typedef struct { uint32_t misc; void *list; int32_t count; void *more; } config_npu_t;

static int64_t now(clockid_t clock)
{
    struct timespec t;
    clock_gettime(clock, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static void check(const char *what, uint32_t status)
{
    if (status) {
        fprintf(stderr, "%s: 0x%x\n", what, status);
        exit(1);
    }
}

int main(int argc, char **argv)
{
    if (argc != 6)
        return 2;
    void *library = dlopen(argv[1], RTLD_NOW);
    FILE *file = fopen(argv[2], "rb");
    size_t in_bytes = strtoul(argv[3], 0, 10), out_bytes = strtoul(argv[4], 0, 10), runs = strtoul(argv[5], 0, 10);
    if (!library || !file)
        return 3;
    fseek(file, 0, SEEK_END);
    size_t size = (size_t)ftell(file);
    rewind(file);
    char *program = malloc(size), *in = calloc(1, in_bytes), *out = calloc(1, out_bytes);
    int64_t *took = calloc(runs, sizeof *took);
    if (fread(program, 1, size, file) != size)
        return 4;
    for (size_t i = 0; i < in_bytes; i++)
        in[i] = (char)(i * 13 % 127);
    uint32_t (*init)(void **) = dlsym(library, "noe_init_context");
    uint32_t (*deinit)(void *) = dlsym(library, "noe_deinit_context");
    uint32_t (*load)(void *, const char *, uint32_t, uint64_t *, config_t *) = dlsym(library, "noe_load_graph_helper");
    uint32_t (*create)(void *, uint64_t, uint64_t *, config_t *) = dlsym(library, "noe_create_job");
    uint32_t (*set)(void *, uint64_t, uint32_t, const void *) = dlsym(library, "noe_load_tensor");
    uint32_t (*infer)(void *, uint64_t, int32_t) = dlsym(library, "noe_job_infer_sync");
    uint32_t (*get)(void *, uint64_t, uint32_t, uint32_t, void *) = dlsym(library, "noe_get_tensor");
    void *context = 0;
    uint64_t graph = 0, job = 0;
    config_npu_t npu;
    memset(&npu, 0, sizeof npu);
    config_t config = {&npu};
    check("init", init(&context));
    check("load", load(context, program, (uint32_t)size, &graph, &config));
    check("create", create(context, graph, &job, &config));
    int64_t cpu = now(CLOCK_PROCESS_CPUTIME_ID);
    for (size_t i = 0; i < runs; i++) {
        int64_t began = now(CLOCK_MONOTONIC);
        check("set", set(context, job, 0, in));
        check("infer", infer(context, job, 10000));
        check("get", get(context, job, 1, 0, out));
        took[i] = now(CLOCK_MONOTONIC) - began;
    }
    cpu = now(CLOCK_PROCESS_CPUTIME_ID) - cpu;
    check("deinit", deinit(context));
    for (size_t i = 0; i < runs; i++)
        printf("%lld\n", (long long)took[i]);
    printf("%lld\n", (long long)cpu);
    return 0;
}
