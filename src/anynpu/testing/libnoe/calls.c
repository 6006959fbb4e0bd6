/* The exported functions, in the order of the real library's symbol table. */
#define _GNU_SOURCE
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fake.h"

#define CTX const context_handler_t *ctx

NOE_API uint32_t noe_add_batch(CTX, uint64_t graph, uint32_t queue, char *in[], char *out[])
{
    ENTER(ctx);
    graph_t *g = graph_of(graph);
    if (!g)
        LEAVE(NOE_INVALID_GRAPH_ID);
    queue_t *q = &fake.queues[g - fake.graphs];
    if (queue != 0 || !q->used)
        LEAVE(NOE_NO_BATCH_QUEUE);
    if (!in || !out)
        LEAVE(NOE_NULL_PTR);
    if (q->count == MOST_BATCH)
        LEAVE(NOE_BUF_ALLOC_FAIL);
    q->in[q->count] = in;
    q->out[q->count++] = out;
    LEAVE(NOE_SUCCESS);
}

NOE_API uint32_t noe_clean_batch_queue(CTX, uint64_t graph, uint32_t queue)
{
    ENTER(ctx);
    graph_t *g = graph_of(graph);
    if (!g)
        LEAVE(NOE_INVALID_GRAPH_ID);
    if (queue != 0 || !fake.queues[g - fake.graphs].used)
        LEAVE(NOE_NO_BATCH_QUEUE);
    fake.queues[g - fake.graphs].used = false;
    LEAVE(NOE_SUCCESS);
}

NOE_API uint32_t noe_clean_job(CTX, uint64_t job)
{
    ENTER(ctx);
    job_t *j = job_of("", job);
    if (j)
        job_drop(j);
    LEAVE(NOE_SUCCESS); /* a second clean is no error */
}

NOE_API uint32_t noe_config_batch_dump(CTX, uint64_t graph, uint32_t queue, uint64_t types, job_config_dump_t *cfg)
{
    ENTER(ctx);
    (void)queue, (void)types;
    LEAVE(!graph_of(graph) ? NOE_INVALID_GRAPH_ID : cfg ? NOE_SUCCESS : NOE_NULL_PTR);
}

NOE_API uint32_t noe_config_global(CTX, uint64_t types, void *cfg)
{
    ENTER(ctx);
    (void)cfg;
    LEAVE(types && !(types & ~0x3c00ull) ? NOE_SUCCESS : NOE_INVALID_CONFIG);
}

NOE_API uint32_t noe_config_job(CTX, uint64_t job, uint64_t types, void *cfg)
{
    ENTER(ctx);
    LEAVE(!job_of(__func__, job) ? NOE_INVALID_JOB_ID : !cfg ? NOE_NULL_PTR : types ? NOE_SUCCESS : NOE_INVALID_CONFIG);
}

NOE_API uint32_t noe_create_batch_queue(CTX, uint64_t graph, uint32_t *queue)
{
    ENTER(ctx);
    graph_t *g = graph_of(graph);
    if (!g)
        LEAVE(NOE_INVALID_GRAPH_ID);
    if (!queue)
        LEAVE(NOE_NULL_PTR);
    fake.queues[g - fake.graphs] = (queue_t){.used = true};
    *queue = 0;
    LEAVE(NOE_SUCCESS);
}

NOE_API uint32_t noe_create_job(CTX, uint64_t graph, uint64_t *job, job_config_t *cfg)
{
    ENTER(ctx);
    graph_t *g = graph_of(graph);
    if (!g)
        LEAVE(NOE_INVALID_GRAPH_ID);
    if (!job)
        LEAVE(NOE_NULL_PTR);
    uint32_t index = 0, status = job_new(__func__, (uint32_t)(g - fake.graphs), cfg, &index);
    if (status == NOE_SUCCESS)
        *job = graph | (index + 1);
    LEAVE(status);
}

NOE_API uint32_t noe_debugger_bind_job(CTX, uint32_t id, uint64_t job)
{
    ENTER(ctx);
    (void)id, (void)job;
    LEAVE(NOE_OP_NOT_SUPPORTED);
}

NOE_API uint32_t noe_debugger_run_job(CTX, uint64_t job)
{
    ENTER(ctx);
    (void)job;
    LEAVE(NOE_OP_NOT_SUPPORTED);
}

NOE_API uint32_t noe_deinit_context(CTX)
{
    ENTER(ctx);
    if (fake.load_failed)
        trap(__func__, "a graph was refused with 0x8 before (the real library crashes)");
    for (uint32_t i = 0; i < MOST_JOBS; i++)
        job_drop(&fake.jobs[i]);
    for (uint32_t i = 0; i < MOST_GRAPHS; i++)
        if (fake.used[i])
            executor_drop(&fake.graphs[i]);
    memset(&fake, 0, sizeof fake);
    LEAVE(NOE_SUCCESS);
}

NOE_API uint32_t noe_finish_batch(CTX, uint64_t graph, uint32_t queue, job_config_t *cfg)
{
    ENTER(ctx);
    graph_t *g = graph_of(graph);
    if (!g)
        LEAVE(NOE_INVALID_GRAPH_ID);
    queue_t *q = &fake.queues[g - fake.graphs];
    if (queue != 0 || !q->used)
        LEAVE(NOE_NO_BATCH_QUEUE);
    uint32_t index = 0, status = job_new(__func__, (uint32_t)(g - fake.graphs), cfg, &index);
    for (uint32_t b = 0; b < q->count && status == NOE_SUCCESS; b++) {
        job_t *j = &fake.jobs[index];
        for (uint32_t i = 0; i < g->counts[NOE_INPUT]; i++)
            memcpy(j->tensors[NOE_INPUT][i], q->in[b][i], g->tensors[NOE_INPUT][i].size);
        status = job_run(__func__, j, 0);
        for (uint32_t i = 0; i < g->counts[NOE_OUTPUT] && status == NOE_SUCCESS; i++)
            memcpy(q->out[b][i], j->tensors[NOE_OUTPUT][i], g->tensors[NOE_OUTPUT][i].size);
    }
    q->count = 0;
    if (status != NOE_INVALID_QOS && status != NOE_NULL_PTR && status != NOE_BUF_ALLOC_FAIL)
        job_drop(&fake.jobs[index]);
    LEAVE(status);
}

NOE_API uint32_t noe_get_cluster_count(CTX, uint32_t partition, uint32_t *count)
{
    ENTER(ctx);
    if (!count)
        LEAVE(NOE_NULL_PTR);
    *count = 1;
    LEAVE(partition ? NOE_INVALID_PARTITION_ID : NOE_SUCCESS);
}

NOE_API uint32_t noe_get_core_count(CTX, uint32_t partition, uint32_t cluster, uint32_t *count)
{
    ENTER(ctx);
    if (!count)
        LEAVE(NOE_NULL_PTR);
    *count = 3;
    LEAVE(partition ? NOE_INVALID_PARTITION_ID : cluster ? NOE_INVALID_CLUSTER_ID : NOE_SUCCESS);
}

NOE_API uint32_t noe_get_error_message(CTX, uint32_t status, const char **message)
{
    ENTER(ctx);
    if (!message)
        LEAVE(NOE_NULL_PTR);
    *message = status == NOE_SUCCESS ? "NOE_STATUS_SUCCESS" : "NOE_STATUS_ERROR";
    LEAVE(NOE_SUCCESS);
}

NOE_API uint32_t noe_get_job_status(CTX, uint64_t job, uint32_t *state, int32_t timeout_ms)
{
    ENTER(ctx);
    job_t *j = job_of(__func__, job);
    if (!j)
        LEAVE(NOE_INVALID_JOB_ID);
    if (!state)
        LEAVE(NOE_NULL_PTR);
    *state = j->outcome;
    if (j->state != JOB_RUNNING)
        LEAVE(j->state == JOB_BROKEN ? NOE_INVALID_OP : NOE_SUCCESS);
    int64_t left = j->ends_ns < 0 ? INT64_MAX : j->ends_ns - now_ns();
    int64_t window = timeout_ms < 0 ? INT64_MAX : timeout_ms * 1000000ll;
    if (left > window) {
        wait_ns(window);
        *state = NOE_JOB_NO_STATUS;
        LEAVE(timeout_ms > 0 ? NOE_TIMEOUT : NOE_SUCCESS);
    }
    wait_ns(left);
    (void)job_finish(__func__, j);
    *state = j->outcome;
    LEAVE(NOE_SUCCESS);
}

NOE_API uint32_t noe_get_partition_count(CTX, uint32_t *count)
{
    ENTER(ctx);
    if (!count)
        LEAVE(NOE_NULL_PTR);
    *count = 1;
    LEAVE(NOE_SUCCESS);
}

NOE_API uint32_t noe_get_target(CTX, char *target)
{
    ENTER(ctx);
    if (!target)
        LEAVE(NOE_NULL_PTR);
    strcpy(target, switched_text("TARGET", "X2_1204MP3"));
    LEAVE(NOE_SUCCESS);
}

NOE_API uint32_t noe_get_tensor(CTX, uint64_t job, uint32_t type, uint32_t index, void *data)
{
    ENTER(ctx);
    job_t *j = job_of(__func__, job);
    if (!j)
        LEAVE(NOE_INVALID_JOB_ID);
    if (!data)
        LEAVE(NOE_NULL_PTR);
    if (type > NOE_OUTPUT)
        LEAVE(NOE_INVALID_TENSOR_TYPE);
    if (j->state != JOB_DONE)
        LEAVE(NOE_INVALID_OP);
    const graph_t *g = &fake.graphs[j->graph];
    if (index >= g->counts[type])
        LEAVE(NOE_INVALID_TENSOR_ID);
    memcpy(data, j->tensors[type][index], g->tensors[type][index].size);
    LEAVE(NOE_SUCCESS);
}

NOE_API uint32_t noe_get_tensor_count(CTX, uint64_t graph, uint32_t type, uint32_t *count)
{
    ENTER(ctx);
    graph_t *g = graph_of(graph);
    if (!g)
        LEAVE(NOE_INVALID_GRAPH_ID);
    if (!count)
        LEAVE(NOE_NULL_PTR);
    if (type == 5 || type == 6)
        LEAVE(NOE_INVALID_TENSOR_TYPE);
    *count = type > NOE_OUTPUT ? 0 : g->counts[type];
    LEAVE(NOE_SUCCESS);
}

/* Switches make the library say other than the file: SIZE_ADD, DTYPE and ZERO_ADD, of the first output. */
NOE_API uint32_t noe_get_tensor_descriptor(CTX, uint64_t graph, uint32_t type, uint32_t index, tensor_desc_t *out)
{
    ENTER(ctx);
    graph_t *g = graph_of(graph);
    if (!g)
        LEAVE(NOE_INVALID_GRAPH_ID);
    if (!out)
        LEAVE(NOE_NULL_PTR);
    if (type > NOE_OUTPUT)
        LEAVE(NOE_INVALID_TENSOR_TYPE);
    if (index >= g->counts[type])
        LEAVE(NOE_INVALID_TENSOR_ID);
    *out = g->tensors[type][index];
    if (type == NOE_OUTPUT && index == 0) {
        out->size += (uint32_t)switched("SIZE_ADD");
        out->zero_point += (int32_t)switched("ZERO_ADD");
        out->data_type = switched("DTYPE") ? (uint32_t)switched("DTYPE") : out->data_type;
    }
    LEAVE(NOE_SUCCESS);
}

NOE_API uint32_t noe_init_context(const context_handler_t **ctx)
{
    pthread_mutex_lock(&fake_lock);
    if (!ctx)
        LEAVE(NOE_NULL_PTR);
    *ctx = 0;
    if (switched("INIT_STATUS"))
        LEAVE((uint32_t)switched("INIT_STATUS"));
    if (fake.handle.handle == CONTEXT)
        trap(__func__, "there is a context already, and it was not given back");
    memset(&fake, 0, sizeof fake);
    fake.handle.handle = CONTEXT;
    fake.owner = pthread_self();
    *ctx = &fake.handle;
    (void)enter(__func__, *ctx);
    LEAVE(NOE_SUCCESS);
}

/* Shapes: ANYNPU_FAKE_NOE_SHAPES="1x3x224x224:1x3x640x640;..." gives least and most, one pair an input. */
static uint32_t shape_of(uint32_t index, bool most, uint32_t *data, uint32_t *count)
{
    const char *text = switched_text("SHAPES", "");
    for (; index && text; index--)
        text = strchr(text, ';') ? strchr(text, ';') + 1 : 0;
    if (text && most)
        text = strchr(text, ':') ? strchr(text, ':') + 1 : 0;
    if (!text || !*text)
        return 0x28;
    for (*count = 0;; text++) {
        uint32_t value = (uint32_t)strtoul(text, (char **)&text, 10);
        if (data)
            data[*count] = value;
        ++*count;
        if (*text != 'x')
            return NOE_SUCCESS;
    }
}

NOE_API uint32_t noe_ioctl(CTX, uint32_t device_type, uint32_t cmd, void *arg)
{
    ENTER(ctx);
    if (device_type != 1 || cmd < 255 || cmd > 273)
        LEAVE(NOE_OP_NOT_SUPPORTED);
    if (cmd == NOE_ABORT_CMDPOOL || cmd == NOE_ENABLE_TICKCOUNTER || cmd == NOE_DISABLE_TICKCOUNTER)
        LEAVE(NOE_SUCCESS);
    if (!arg)
        LEAVE(NOE_NULL_PTR);
    if (cmd == NOE_GET_VERSION) {
        noe_driver_version_t *version = arg;
        snprintf(version->umd_version, 16, "%s", switched_text("UMD_VERSION", "0.6.0"));
        snprintf(version->kmd_version, 16, "%s", switched_text("KMD_VERSION", "5.11.0"));
        LEAVE(NOE_SUCCESS);
    }
    graph_t *g = graph_of(((noe_cix_buildversion_t *)arg)->graph_id); /* the first member of all that follow */
    if (!g)
        LEAVE(NOE_INVALID_GRAPH_ID);
    noe_dynshape_info_t *info = arg;
    uint32_t count = 0, data[16];
    switch (cmd) {
    case NOE_GET_BUILDVERSION:
        ((noe_cix_buildversion_t *)arg)->version = g->build_version;
        LEAVE(NOE_SUCCESS);
    case NOE_GET_DS_NUM:
        while (count < MOST_TENSORS && shape_of(count, false, data, data) == NOE_SUCCESS)
            count++;
        *((noe_dynshape_num_t *)arg)->ds_num = count;
        LEAVE(NOE_SUCCESS);
    case NOE_GET_DS_DIM_NUM:
        LEAVE(shape_of(info->ds_idx, info->max_threshhold, 0, info->ds_data));
    case NOE_GET_DS_INFO:
        LEAVE(shape_of(info->ds_idx, info->max_threshhold, info->ds_data, &count));
    default:
        LEAVE(NOE_OP_NOT_SUPPORTED);
    }
}

/* The callback is never called, as in the real library: poll with noe_get_job_status. */
NOE_API uint32_t noe_job_infer_async(CTX, uint64_t job, int (*callback)(uint64_t, uint32_t))
{
    ENTER(ctx);
    (void)callback;
    job_t *j = job_of(__func__, job);
    if (!j)
        LEAVE(NOE_INVALID_JOB_ID);
    if (j->state == JOB_BROKEN || j->state == JOB_RUNNING)
        LEAVE(NOE_INVALID_OP);
    j->state = JOB_RUNNING;
    j->outcome = NOE_JOB_NO_STATUS;
    j->ends_ns = switched("HANG") ? -1 : now_ns() + switched("DELAY_US") * 1000;
    LEAVE(NOE_SUCCESS);
}

NOE_API uint32_t noe_job_infer_sync(CTX, uint64_t job, int32_t timeout_ms)
{
    ENTER(ctx);
    job_t *j = job_of(__func__, job);
    if (!j)
        LEAVE(NOE_INVALID_JOB_ID);
    if (j->state == JOB_BROKEN || j->state == JOB_RUNNING)
        LEAVE(NOE_INVALID_OP);
    LEAVE(job_run(__func__, j, timeout_ms));
}

NOE_API uint32_t noe_load_graph(CTX, const char *path, uint64_t *id, graph_config_t *cfg)
{
    ENTER(ctx);
    (void)path, (void)id, (void)cfg;
    trap(__func__, "the real library crashes on most damaged files: read them first, then noe_load_graph_helper");
}

NOE_API uint32_t noe_load_graph_helper(CTX, const char *buffer, uint32_t size, uint64_t *id, graph_config_t *cfg)
{
    ENTER(ctx);
    if (!cfg)
        trap(__func__, "the configuration is NULL (the real library crashes)");
    if (switched("CRASH_LOAD"))
        raise(SIGSEGV);
    if (!buffer || !id)
        LEAVE(NOE_NULL_PTR);
    uint32_t index = 0, status = (uint32_t)switched("LOAD_STATUS");
    while (index < MOST_GRAPHS && fake.used[index])
        index++;
    if (index == MOST_GRAPHS)
        LEAVE(NOE_BUF_ALLOC_FAIL);
    status = status ? status : graph_read(&fake.graphs[index], (const uint8_t *)buffer, size);
    fake.load_failed = fake.load_failed || status == NOE_GVERSION_UNSUPPORTED;
    if (status == NOE_SUCCESS) {
        fake.used[index] = true;
        *id = graph_id(index);
    }
    LEAVE(status);
}

NOE_API uint32_t noe_load_tensor(CTX, uint64_t job, uint32_t index, const void *data)
{
    ENTER(ctx);
    job_t *j = job_of(__func__, job);
    if (!j)
        LEAVE(NOE_INVALID_JOB_ID);
    if (!data)
        LEAVE(NOE_NULL_PTR);
    if (j->state == JOB_BROKEN || j->state == JOB_RUNNING)
        LEAVE(NOE_INVALID_OP);
    const graph_t *g = &fake.graphs[j->graph];
    if (index >= g->counts[NOE_INPUT])
        LEAVE(NOE_INVALID_TENSOR_ID);
    memcpy(j->tensors[NOE_INPUT][index], data, g->tensors[NOE_INPUT][index].size);
    LEAVE(NOE_SUCCESS);
}

NOE_API uint32_t noe_set_freq(int index)
{
    (void)index;
    return refuse(__func__, NOE_OPEN_DEV_FAIL);
}

NOE_API uint32_t noe_specify_iobuf(CTX, uint64_t job, shared_tensor_info_t *info)
{
    ENTER(ctx);
    LEAVE(!job_of(__func__, job) ? NOE_INVALID_JOB_ID : !info ? NOE_NULL_PTR : NOE_OP_NOT_SUPPORTED);
}

NOE_API uint32_t noe_unload_graph(CTX, uint64_t graph)
{
    ENTER(ctx);
    graph_t *g = graph_of(graph);
    if (!g)
        LEAVE(NOE_INVALID_GRAPH_ID);
    check_buffer(__func__, g);
    for (uint32_t i = 0; i < MOST_JOBS; i++)
        if (fake.jobs[i].state > JOB_CLEANED && fake.jobs[i].graph == (uint32_t)(g - fake.graphs))
            job_drop(&fake.jobs[i]);
    executor_drop(g);
    fake.used[g - fake.graphs] = false;
    LEAVE(NOE_SUCCESS);
}
