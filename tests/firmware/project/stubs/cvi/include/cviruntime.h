/* The interface of CVITEK's cviruntime, as far as projects use it: types and functions of the public ABI. */
#ifndef CVIRUNTIME_STUB_H
#define CVIRUNTIME_STUB_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define CVI_RC_SUCCESS 0
#define CVI_RC_FAILURE (-1)
#define CVI_DIM_MAX 6

typedef int CVI_RC;
typedef void *CVI_MODEL_HANDLE;

typedef enum {
    CVI_FMT_FP32 = 0,
    CVI_FMT_INT32 = 1,
    CVI_FMT_UINT32 = 2,
    CVI_FMT_BF16 = 3,
    CVI_FMT_INT16 = 4,
    CVI_FMT_UINT16 = 5,
    CVI_FMT_INT8 = 6,
    CVI_FMT_UINT8 = 7
} CVI_FMT;

typedef enum { CVI_MEM_SYSTEM = 1, CVI_MEM_DEVICE = 2 } CVI_MEM_TYPE_E;
typedef enum { CVI_NN_PIXEL_RGB_PACKED = 0, CVI_NN_PIXEL_TENSOR = 100 } CVI_NN_PIXEL_FORMAT_E;

typedef struct {
    int32_t dim[CVI_DIM_MAX];
    size_t dim_size;
} CVI_SHAPE;

typedef struct {
    char *name;
    CVI_SHAPE shape;
    CVI_FMT fmt;
    size_t count;
    size_t mem_size;
    uint8_t *sys_mem;
    uint64_t paddr;
    CVI_MEM_TYPE_E mem_type;
    float qscale;
    int zero_point;
    CVI_NN_PIXEL_FORMAT_E pixel_format;
    bool aligned;
    float mean[3];
    float scale[3];
    void *owner;
    char reserved[32];
} CVI_TENSOR;

CVI_RC CVI_NN_RegisterModel(const char *model_file, CVI_MODEL_HANDLE *model);
CVI_RC CVI_NN_GetInputOutputTensors(CVI_MODEL_HANDLE model, CVI_TENSOR **inputs, int32_t *input_num,
                                    CVI_TENSOR **outputs, int32_t *output_num);
CVI_RC CVI_NN_Forward(CVI_MODEL_HANDLE model, CVI_TENSOR inputs[], int32_t input_num, CVI_TENSOR outputs[],
                      int32_t output_num);
CVI_RC CVI_NN_CleanupModel(CVI_MODEL_HANDLE model);
CVI_TENSOR *CVI_NN_GetTensorByName(const char *name, CVI_TENSOR *tensors, int32_t num);
void *CVI_NN_TensorPtr(CVI_TENSOR *tensor);
size_t CVI_NN_TensorCount(CVI_TENSOR *tensor);

#ifdef __cplusplus
}
#endif

#endif
