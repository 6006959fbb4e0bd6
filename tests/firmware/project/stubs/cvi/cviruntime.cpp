/* A cviruntime for tests. A model is a text: a line "input|output NAME FORMAT QSCALE ZERO_POINT COUNT ALIGNED" for each
 * tensor, and lines that start with a fault. An output's value i is 2 * x[i % n] - 0.5 + its number, where x is the
 * first input as real numbers, and every later input adds its own value i % n. */
#include "cviruntime.h"

#include <cmath>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <limits>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

namespace {

struct Model {
    std::vector<CVI_TENSOR> inputs, outputs;
    std::vector<std::unique_ptr<std::string>> names;
    std::vector<std::unique_ptr<std::vector<uint8_t>>> memory;
    std::string fault;
};

size_t width(CVI_FMT format) {
    return format < CVI_FMT_BF16 ? 4 : (format < CVI_FMT_INT8 ? 2 : 1);
}

template <typename T>
double read(const CVI_TENSOR &t, size_t i) {
    return static_cast<double>(reinterpret_cast<const T *>(t.sys_mem)[i]);
}

template <typename T>
void write(CVI_TENSOR &t, size_t i, double value) {
    const double low = std::numeric_limits<T>::lowest(), high = std::numeric_limits<T>::max();
    reinterpret_cast<T *>(t.sys_mem)[i] = static_cast<T>(value < low ? low : (value > high ? high : value));
}

double stored(const CVI_TENSOR &t, size_t i) {
    switch (t.fmt) {
        case CVI_FMT_FP32: return read<float>(t, i);
        case CVI_FMT_INT32: return read<int32_t>(t, i);
        case CVI_FMT_INT16: return read<int16_t>(t, i);
        case CVI_FMT_UINT8: return read<uint8_t>(t, i);
        case CVI_FMT_INT8: return read<int8_t>(t, i);
        case CVI_FMT_BF16: {
            const uint32_t bits = static_cast<uint32_t>(reinterpret_cast<const uint16_t *>(t.sys_mem)[i]) << 16;
            float value;
            std::memcpy(&value, &bits, sizeof value);
            return value;
        }
        default: return 0;
    }
}

double real_input(const CVI_TENSOR &t, size_t i) {
    return t.qscale != 0.0f ? (stored(t, i) - t.zero_point) / t.qscale : stored(t, i);
}

void give(CVI_TENSOR &t, size_t i, double value) {
    const double steps = t.qscale != 0.0f ? std::round(value / t.qscale) + t.zero_point : value;
    switch (t.fmt) {
        case CVI_FMT_FP32: reinterpret_cast<float *>(t.sys_mem)[i] = static_cast<float>(value); break;
        case CVI_FMT_INT32: write<int32_t>(t, i, steps); break;
        case CVI_FMT_INT16: write<int16_t>(t, i, steps); break;
        case CVI_FMT_UINT8: write<uint8_t>(t, i, steps); break;
        case CVI_FMT_INT8: write<int8_t>(t, i, steps); break;
        case CVI_FMT_BF16: {
            const float plain = static_cast<float>(value);
            uint32_t bits;
            std::memcpy(&bits, &plain, sizeof bits);
            reinterpret_cast<uint16_t *>(t.sys_mem)[i] = static_cast<uint16_t>(bits >> 16);
            break;
        }
        default: break;
    }
}

void add(Model &model, std::istringstream &words, std::vector<CVI_TENSOR> &tensors) {
    CVI_TENSOR t = {};
    std::string name;
    int format = 0, aligned = 0;
    words >> name >> format >> t.qscale >> t.zero_point >> t.count >> aligned;
    model.names.push_back(std::unique_ptr<std::string>(new std::string(name)));
    t.name = &(*model.names.back())[0];
    t.fmt = static_cast<CVI_FMT>(format);
    t.aligned = aligned != 0;
    t.mem_size = t.count * width(t.fmt);
    model.memory.push_back(std::unique_ptr<std::vector<uint8_t>>(new std::vector<uint8_t>(t.mem_size)));
    t.sys_mem = model.memory.back()->data();
    t.mem_type = CVI_MEM_SYSTEM;
    t.shape.dim_size = 4;
    t.shape.dim[0] = 1;
    t.shape.dim[1] = static_cast<int32_t>(t.count);
    t.shape.dim[2] = t.shape.dim[3] = 1;
    tensors.push_back(t);
}

}  // namespace

CVI_RC CVI_NN_RegisterModel(const char *file, CVI_MODEL_HANDLE *handle) {
    std::ifstream stream(file);
    if (!stream) {
        return CVI_RC_FAILURE;
    }
    std::unique_ptr<Model> model(new Model);
    for (std::string line; std::getline(stream, line);) {
        std::istringstream words(line);
        std::string kind;
        words >> kind;
        if (kind == "input") {
            add(*model, words, model->inputs);
        } else if (kind == "output") {
            add(*model, words, model->outputs);
        } else {
            model->fault = kind;
        }
    }
    *handle = model.release();
    return CVI_RC_SUCCESS;
}

CVI_RC CVI_NN_GetInputOutputTensors(CVI_MODEL_HANDLE handle, CVI_TENSOR **inputs, int32_t *input_num,
                                    CVI_TENSOR **outputs, int32_t *output_num) {
    Model &model = *static_cast<Model *>(handle);
    *inputs = model.inputs.data();
    *outputs = model.outputs.data();
    *input_num = static_cast<int32_t>(model.inputs.size());
    *output_num = static_cast<int32_t>(model.outputs.size());
    return model.fault == "no-tensors" ? CVI_RC_FAILURE : CVI_RC_SUCCESS;
}

CVI_RC CVI_NN_Forward(CVI_MODEL_HANDLE handle, CVI_TENSOR inputs[], int32_t input_num, CVI_TENSOR outputs[],
                      int32_t output_num) {
    const std::string &fault = static_cast<Model *>(handle)->fault;
    if (fault == "no-forward") {
        return CVI_RC_FAILURE;
    }
    for (int32_t o = 0; o < output_num; ++o) {
        for (size_t i = 0; i < outputs[o].count; ++i) {
            double value = 2.0 * real_input(inputs[0], i % inputs[0].count) - 0.5 + o;
            for (int32_t k = 1; k < input_num; ++k) {
                value += real_input(inputs[k], i % inputs[k].count);
            }
            value = fault == "garbage" ? static_cast<double>(i) : value;
            give(outputs[o], i, fault == "nan" && i == 3 ? std::nan("") : value);
        }
    }
    return CVI_RC_SUCCESS;
}

CVI_RC CVI_NN_CleanupModel(CVI_MODEL_HANDLE handle) {
    std::fprintf(stderr, "stub: model freed\n");
    delete static_cast<Model *>(handle);
    return CVI_RC_SUCCESS;
}

CVI_TENSOR *CVI_NN_GetTensorByName(const char *name, CVI_TENSOR *tensors, int32_t num) {
    for (int32_t i = 0; i < num; ++i) {
        if (std::strcmp(tensors[i].name, name) == 0) {
            return &tensors[i];
        }
    }
    return nullptr;
}

void *CVI_NN_TensorPtr(CVI_TENSOR *tensor) { return tensor->sys_mem; }
size_t CVI_NN_TensorCount(CVI_TENSOR *tensor) { return tensor->count; }
