/* A .cvimodel behind cviruntime: real numbers in, real numbers out. */
#ifndef ANYNPU_CVI_MODEL_H
#define ANYNPU_CVI_MODEL_H

#include <cstddef>
#include <string>
#include <vector>

#include "cviruntime.h"

namespace anynpu {

/* A tensor as the build knows it: its name there, its name in the compiled model, how many values it has, and the
 * largest magnitude among the known answers (of an output). */
struct Tensor {
    const char *name;
    const char *runtime_name;
    std::size_t size;
    float peak;
};

/* Owns one model. Every function returns an empty text, or what went wrong in one sentence. */
class CviModel {
public:
    CviModel() = default;
    ~CviModel();
    CviModel(const CviModel &) = delete;
    CviModel &operator=(const CviModel &) = delete;

    std::string open(const std::string &path, const Tensor *inputs, std::size_t input_count, const Tensor *outputs,
                     std::size_t output_count);

    /* Quantises into the model's own buffer. The tensors are numbered as in open(). */
    std::string set_input(std::size_t index, const float *values);
    std::string forward();
    std::string get_output(std::size_t index, float *values) const;

    /* The step between two neighbouring values of an output; 0 where it holds real numbers. */
    float output_step(std::size_t index) const;

    /* What the runtime says of the model and its tensors, one line each. */
    std::string describe() const;

private:
    CVI_MODEL_HANDLE model_ = nullptr;
    CVI_TENSOR *inputs_ = nullptr;
    CVI_TENSOR *outputs_ = nullptr;
    int32_t input_count_ = 0;
    int32_t output_count_ = 0;
    std::vector<CVI_TENSOR *> in_;
    std::vector<CVI_TENSOR *> out_;
};

}  // namespace anynpu

#endif
