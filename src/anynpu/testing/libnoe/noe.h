/* The ABI of libnoe as the real library has it: what a caller passes and what it gets. All enums are 32 bits wide. */
#ifndef ANYNPU_FAKE_NOE_H
#define ANYNPU_FAKE_NOE_H

#include <stdbool.h>
#include <stdint.h>

#define NOE_API __attribute__((visibility("default")))

enum {
    NOE_SUCCESS = 0x0, NOE_NULL_PTR = 0x1, NOE_INVALID_CTX = 0x2, NOE_OPEN_DEV_FAIL = 0x3, NOE_INVALID_CONFIG = 0x6,
    NOE_GVERSION_UNSUPPORTED = 0x8, NOE_INVALID_GBIN = 0x9, NOE_TARGET_NOT_FOUND = 0xa, NOE_INVALID_GRAPH_ID = 0xb,
    NOE_INVALID_JOB_ID = 0x10, NOE_JOB_EXCEPTION = 0x11, NOE_OP_NOT_SUPPORTED = 0x13, NOE_INVALID_OP = 0x14,
    NOE_INVALID_SIZE = 0x15, NOE_BUF_ALLOC_FAIL = 0x16, NOE_INVALID_TENSOR_ID = 0x1a, NOE_INVALID_CLUSTER_ID = 0x1b,
    NOE_INVALID_PARTITION_ID = 0x1c, NOE_INVALID_TENSOR_TYPE = 0x1e, NOE_INVALID_QOS = 0x21, NOE_TIMEOUT = 0x23,
    NOE_NO_BATCH_QUEUE = 0x24, NOE_SET_SHAPE_FAILED = 0x29
};
enum { NOE_INPUT = 0, NOE_OUTPUT = 1 };
enum { NOE_JOB_NO_STATUS = 0, NOE_JOB_DONE = 1, NOE_JOB_IS_EXCEPTION = 2 };
enum {
    NOE_GET_BUILDVERSION = 256, NOE_GET_DS_NUM = 257, NOE_GET_DS_DIM_NUM = 258, NOE_GET_DS_INFO = 259,
    NOE_SET_DS_INFO = 260, NOE_GET_VERSION = 270, NOE_ABORT_CMDPOOL = 271, NOE_ENABLE_TICKCOUNTER = 272,
    NOE_DISABLE_TICKCOUNTER = 273
};

typedef struct { uint32_t handle; } context_handler_t;
typedef struct { uint32_t id, size; float scale; int32_t zero_point; uint32_t data_type; } tensor_desc_t;
typedef struct { uint32_t ds_idx; uint32_t *ds_data; } noe_dynshape_item_t;
typedef struct { uint32_t input_shape_cnt; noe_dynshape_item_t *shape_items; } noe_dynshape_param_t;
typedef struct { uint32_t misc; int32_t *fm_idxes; int32_t fm_idxes_cnt; noe_dynshape_param_t *dynshape; } job_config_npu_t;
typedef struct { job_config_npu_t *conf_j_npu; } job_config_t;
typedef struct { uint32_t misc; int32_t *wt_idxes; int32_t wt_idxes_cnt; char *extra_weight_path; } graph_config_npu_t;
typedef struct { graph_config_npu_t *conf_g_npu; } graph_config_t;
typedef struct { char umd_version[16], kmd_version[16]; } noe_driver_version_t;
typedef struct { uint64_t graph_id; uint32_t version; } noe_cix_buildversion_t;
typedef struct { uint64_t graph_id; uint32_t *ds_num; } noe_dynshape_num_t;
typedef struct { uint64_t graph_id; uint32_t ds_idx; bool max_threshhold; uint32_t *ds_dim_num; } noe_dynshape_dim_num_t;
typedef struct { uint64_t graph_id; uint32_t ds_idx; bool max_threshhold; uint32_t *ds_data; } noe_dynshape_info_t;
typedef struct { char *dump_dir, *prefix, *output_prefix, *misc_prefix; } job_config_dump_t;
typedef struct {
    uint32_t type, tensor_idx; uint64_t id, pa; int32_t dmabuf_fd; uint32_t offset; int32_t shared_case_type;
} shared_tensor_info_npu_t;
typedef struct { shared_tensor_info_npu_t *npu; } shared_tensor_info_t;

_Static_assert(sizeof(tensor_desc_t) == 20, "tensor_desc_t");
_Static_assert(sizeof(job_config_npu_t) == 32 && sizeof(graph_config_npu_t) == 32, "configurations");
_Static_assert(sizeof(noe_driver_version_t) == 32 && sizeof(noe_cix_buildversion_t) == 16, "versions");
_Static_assert(sizeof(noe_dynshape_num_t) == 16 && sizeof(noe_dynshape_info_t) == 24, "shapes");
_Static_assert(sizeof(shared_tensor_info_npu_t) == 40 && sizeof(job_config_dump_t) == 32, "sharing and dumps");

#endif
