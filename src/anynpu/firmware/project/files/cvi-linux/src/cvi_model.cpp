#include "cvi_model.h"

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <sstream>

namespace anynpu {
namespace {

const char *format_name(CVI_FMT format) {
    switch (format) {
        case CVI_FMT_FP32: return "float32";
        case CVI_FMT_INT32: return "int32";
        case CVI_FMT_UINT32: return "uint32";
        case CVI_FMT_BF16: return "bfloat16";
        case CVI_FMT_INT16: return "int16";
        case CVI_FMT_UINT16: return "uint16";
        case CVI_FMT_INT8: return "int8";
        case CVI_FMT_UINT8: return "uint8";
    }
    return "unknown";
}

bool is_float(CVI_FMT format) { return format == CVI_FMT_FP32 || format == CVI_FMT_BF16; }

std::size_t width(CVI_FMT format) {
    switch (format) {
        case CVI_FMT_FP32: case CVI_FMT_INT32: case CVI_FMT_UINT32: return 4;
        case CVI_FMT_BF16: case CVI_FMT_INT16: case CVI_FMT_UINT16: return 2;
        case CVI_FMT_INT8: case CVI_FMT_UINT8: return 1;
    }
    return 0;
}

/* An integer tensor without a scale holds plain numbers, such as the indices of an embedding. */
bool is_quantised(const CVI_TENSOR &tensor) {
    return !is_float(tensor.fmt) && tensor.qscale != 0.0f && width(tensor.fmt) < 4;
}

uint16_t to_bfloat16(float value) {
    uint32_t bits;
    std::memcpy(&bits, &value, sizeof bits);
    if (std::isnan(value)) {
        return static_cast<uint16_t>((bits >> 16) | 0x40u);
    }
    return static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

float from_bfloat16(uint16_t stored) {
    const uint32_t bits = static_cast<uint32_t>(stored) << 16;
    float value;
    std::memcpy(&value, &bits, sizeof value);
    return value;
}

/* The runtime's scale of an input multiplies: stored = round(real * qscale) + zero_point, half away from zero. */
template <typename Stored>
void store(const CVI_TENSOR &tensor, const float *values, std::size_t count) {
    Stored *target = reinterpret_cast<Stored *>(tensor.sys_mem);
    const double low = static_cast<double>(std::numeric_limits<Stored>::min());
    const double high = static_cast<double>(std::numeric_limits<Stored>::max());
    const double scale = is_quantised(tensor) ? static_cast<double>(tensor.qscale) : 1.0;
    const double zero = is_quantised(tensor) ? tensor.zero_point : 0;
    for (std::size_t i = 0; i < count; ++i) {
        const double wanted = std::round(static_cast<double>(values[i]) * scale) + zero;
        target[i] = static_cast<Stored>(wanted < low ? low : (wanted > high ? high : wanted));
    }
}

/* That of an output multiplies as well: real = (stored - zero_point) * qscale. */
template <typename Stored>
void load(const CVI_TENSOR &tensor, float *values, std::size_t count) {
    const Stored *source = reinterpret_cast<const Stored *>(tensor.sys_mem);
    const double scale = is_quantised(tensor) ? static_cast<double>(tensor.qscale) : 1.0;
    const double zero = is_quantised(tensor) ? tensor.zero_point : 0;
    for (std::size_t i = 0; i < count; ++i) {
        values[i] = static_cast<float>((static_cast<double>(source[i]) - zero) * scale);
    }
}

std::string described(const CVI_TENSOR &tensor, const char *kind) {
    std::ostringstream text;
    text << kind << " " << tensor.name << ": " << format_name(tensor.fmt) << " ";
    for (std::size_t i = 0; i < tensor.shape.dim_size; ++i) {
        text << (i ? "x" : "") << tensor.shape.dim[i];
    }
    if (is_quantised(tensor)) {
        text << ", qscale " << tensor.qscale << ", zero point " << tensor.zero_point;
    }
    return text.str() + "\n";
}

std::string failed(const char *call, CVI_RC code) {
    std::ostringstream text;
    text << call << " returned " << code;
    return text.str();
}

/* Returns the runtime's tensor of each that is wanted: by name, each once and of the right size. */
std::string find(const char *kind, CVI_TENSOR *given, int32_t given_count, const Tensor *wanted, std::size_t count,
                 std::vector<CVI_TENSOR *> &found) {
    if (static_cast<std::size_t>(given_count) != count) {
        std::ostringstream text;
        text << "the model has " << given_count << " " << kind << "s, the project was made for " << count;
        return text.str();
    }
    for (std::size_t i = 0; i < count; ++i) {
        CVI_TENSOR *tensor = CVI_NN_GetTensorByName(wanted[i].runtime_name, given, given_count);
        std::ostringstream text;
        text << kind << " " << wanted[i].runtime_name;
        if (tensor == nullptr) {
            return text.str() + ": the model has no such tensor; it is another network";
        }
        if (CVI_NN_TensorCount(tensor) != wanted[i].size) {
            text << ": holds " << CVI_NN_TensorCount(tensor) << " values, the project was made for " << wanted[i].size;
            return text.str();
        }
        if (tensor->aligned || tensor->mem_size < wanted[i].size * width(tensor->fmt)) {
            return text.str() + ": its rows are padded for the video hardware: build without a fused pixel format";
        }
        if (width(tensor->fmt) == 0) {
            return text.str() + ": is of a type that this program does not know";
        }
        if (CVI_NN_TensorPtr(tensor) == nullptr) {
            return text.str() + ": the runtime gives no memory for it";
        }
        found.push_back(tensor);
    }
    return "";
}

}  // namespace

CviModel::~CviModel() {
    if (model_ != nullptr) {
        CVI_NN_CleanupModel(model_);
    }
}

std::string CviModel::open(const std::string &path, const Tensor *inputs, std::size_t input_count,
                           const Tensor *outputs, std::size_t output_count) {
    CVI_RC code = CVI_NN_RegisterModel(path.c_str(), &model_);
    if (code != CVI_RC_SUCCESS) {
        model_ = nullptr;
        return path + ": " + failed("CVI_NN_RegisterModel", code);
    }
    code = CVI_NN_GetInputOutputTensors(model_, &inputs_, &input_count_, &outputs_, &output_count_);
    if (code != CVI_RC_SUCCESS) {
        return path + ": " + failed("CVI_NN_GetInputOutputTensors", code);
    }
    const std::string wrong = find("input", inputs_, input_count_, inputs, input_count, in_);
    return wrong.empty() ? find("output", outputs_, output_count_, outputs, output_count, out_) : wrong;
}

std::string CviModel::set_input(std::size_t index, const float *values) {
    const CVI_TENSOR &tensor = *in_[index];
    const std::size_t count = tensor.count;
    for (std::size_t i = 0; i < count; ++i) {
        if (!is_float(tensor.fmt) && std::isnan(values[i])) {
            return std::string("input ") + tensor.name + ": NaN cannot be quantised";
        }
    }
    switch (tensor.fmt) {
        case CVI_FMT_FP32: std::memcpy(tensor.sys_mem, values, count * sizeof(float)); break;
        case CVI_FMT_INT32: store<int32_t>(tensor, values, count); break;
        case CVI_FMT_UINT32: store<uint32_t>(tensor, values, count); break;
        case CVI_FMT_INT16: store<int16_t>(tensor, values, count); break;
        case CVI_FMT_UINT16: store<uint16_t>(tensor, values, count); break;
        case CVI_FMT_INT8: store<int8_t>(tensor, values, count); break;
        case CVI_FMT_UINT8: store<uint8_t>(tensor, values, count); break;
        case CVI_FMT_BF16:
            for (std::size_t i = 0; i < count; ++i) {
                reinterpret_cast<uint16_t *>(tensor.sys_mem)[i] = to_bfloat16(values[i]);
            }
            break;
    }
    return "";
}

std::string CviModel::forward() {
    const CVI_RC code = CVI_NN_Forward(model_, inputs_, input_count_, outputs_, output_count_);
    return code == CVI_RC_SUCCESS ? "" : failed("CVI_NN_Forward", code);
}

std::string CviModel::get_output(std::size_t index, float *values) const {
    const CVI_TENSOR &tensor = *out_[index];
    const std::size_t count = tensor.count;
    switch (tensor.fmt) {
        case CVI_FMT_FP32: std::memcpy(values, tensor.sys_mem, count * sizeof(float)); break;
        case CVI_FMT_INT32: load<int32_t>(tensor, values, count); break;
        case CVI_FMT_UINT32: load<uint32_t>(tensor, values, count); break;
        case CVI_FMT_INT16: load<int16_t>(tensor, values, count); break;
        case CVI_FMT_UINT16: load<uint16_t>(tensor, values, count); break;
        case CVI_FMT_INT8: load<int8_t>(tensor, values, count); break;
        case CVI_FMT_UINT8: load<uint8_t>(tensor, values, count); break;
        case CVI_FMT_BF16:
            for (std::size_t i = 0; i < count; ++i) {
                values[i] = from_bfloat16(reinterpret_cast<const uint16_t *>(tensor.sys_mem)[i]);
            }
            break;
    }
    return "";
}

float CviModel::output_step(std::size_t index) const {
    return is_quantised(*out_[index]) ? std::fabs(out_[index]->qscale) : 0.0f;
}

std::string CviModel::describe() const {
    std::string text;
    for (const CVI_TENSOR *tensor : in_) {
        text += described(*tensor, "input");
    }
    for (const CVI_TENSOR *tensor : out_) {
        text += described(*tensor, "output");
    }
    return text;
}

}  // namespace anynpu
