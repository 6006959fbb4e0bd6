/* What the parts of the fake share: its switches, its state, and how it says what went wrong. */
#ifndef ANYNPU_FAKE_H
#define ANYNPU_FAKE_H

#include <pthread.h>

#include "graph.h"

#define MOST_GRAPHS 32
#define MOST_JOBS 64
#define MOST_BATCH 256
#define CONTEXT 0x4e4f45u

typedef enum { JOB_FREE, JOB_CLEANED, JOB_READY, JOB_RUNNING, JOB_DONE, JOB_BROKEN } job_state_t;

typedef struct {
    job_state_t state;
    uint32_t graph, outcome;
    int64_t ends_ns; /* of an asynchronous run; -1: it never ends */
    uint8_t *tensors[2][MOST_TENSORS];
} job_t;

typedef struct { bool used; uint32_t count; char **in[MOST_BATCH], **out[MOST_BATCH]; } queue_t;

typedef struct {
    context_handler_t handle;
    pthread_t owner;
    bool load_failed;
    uint64_t inferences;
    bool used[MOST_GRAPHS];
    graph_t graphs[MOST_GRAPHS];
    queue_t queues[MOST_GRAPHS];
    job_t jobs[MOST_JOBS];
} state_t;

extern state_t fake;
extern pthread_mutex_t fake_lock;

long switched(const char *name); /* ANYNPU_FAKE_NOE_<name> as a number, 0 unless set */
const char *switched_text(const char *name, const char *otherwise);
uint32_t refuse(const char *call, uint32_t status); /* says so on stdout, with a backtrace, as the real library does */
_Noreturn void trap(const char *call, const char *why);
uint32_t enter(const char *call, const context_handler_t *ctx);

graph_t *graph_of(uint64_t id);
job_t *job_of(const char *call, uint64_t id);
uint64_t graph_id(uint32_t index);
int64_t now_ns(void);
void wait_ns(int64_t ns);

uint32_t job_new(const char *call, uint32_t graph, const job_config_t *cfg, uint32_t *index);
void job_drop(job_t *job);
uint32_t job_run(const char *call, job_t *job, int32_t timeout_ms);
uint32_t job_finish(const char *call, job_t *job);
void check_buffer(const char *call, const graph_t *graph);

/* Every call holds the lock; LEAVE gives the status back. */
#define ENTER(ctx)                                                    \
    pthread_mutex_lock(&fake_lock);                                   \
    uint32_t status_ = enter(__func__, ctx);                          \
    if (status_ != NOE_SUCCESS) {                                     \
        pthread_mutex_unlock(&fake_lock);                             \
        return status_;                                               \
    }
#define LEAVE(status)                                                 \
    do {                                                              \
        uint32_t given_ = (status);                                   \
        if (given_ != NOE_SUCCESS)                                    \
            refuse(__func__, given_);                                 \
        pthread_mutex_unlock(&fake_lock);                             \
        return given_;                                                \
    } while (0)

#endif
