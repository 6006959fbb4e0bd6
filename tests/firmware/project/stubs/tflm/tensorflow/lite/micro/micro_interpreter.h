/* A stand-in for TFLite-Micro's interpreter: the tensors of the real file (real_tensors.h, written by the test) in the
   arena that it is given, and the known answers as its arithmetic. */
#ifndef MICRO_INTERPRETER_H
#define MICRO_INTERPRETER_H
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "tensorflow/lite/micro/micro_mutable_op_resolver.h"
#include "tensorflow/lite/schema/schema_generated.h"

struct TfLiteIntArray {
    int size;
    int data[6];
};
union TfLitePtrUnion {
    void *data;
};
struct TfLiteTensor {
    TfLitePtrUnion data;
    size_t bytes;
    TfLiteIntArray *dims;
};

#ifdef REAL_TENSORS
#include "anynpu_vectors.h"
#include "real_tensors.h"
#else
#define REAL_OPERATORS 1
#define REAL_ARENA 1
#define REAL_INPUT {1, {1}}
#define REAL_OUTPUT {1, {1}}
#define KAT_VECTORS 0u
#define KAT_INPUT_BYTES 1u
#define KAT_OUTPUT_BYTES 1u
static const uint8_t kat_inputs[1][1] = {{0}};
static const uint8_t kat_outputs[1][1] = {{0}};
#endif

namespace tflite {
class MicroInterpreter {
  public:
    MicroInterpreter(const Model *, const MicroOpResolver &resolver, uint8_t *arena, size_t size)
        : resolver_(resolver), arena_(arena), size_(size)
    {
    }
    TfLiteStatus AllocateTensors()
    {
        if (size_ < REAL_ARENA || resolver_.added != REAL_OPERATORS) {
            return kTfLiteError;
        }
        input_ = {{arena_}, KAT_INPUT_BYTES, &input_dims_};
        output_ = {{arena_}, KAT_OUTPUT_BYTES, &output_dims_};
        return kTfLiteOk;
    }
    TfLiteTensor *input(size_t i) { return i == 0 ? &input_ : nullptr; }
    TfLiteTensor *output(size_t i) { return i == 0 ? &output_ : nullptr; }
    TfLiteStatus Invoke()
    {
        for (unsigned i = 0; i < KAT_VECTORS; ++i) {
            if (std::memcmp(arena_, kat_inputs[i], KAT_INPUT_BYTES) == 0) {
                std::memcpy(arena_, kat_outputs[i], KAT_OUTPUT_BYTES);
                return kTfLiteOk;
            }
        }
        return kTfLiteError;
    }
    size_t arena_used_bytes() const { return REAL_ARENA; }

  private:
    const MicroOpResolver &resolver_;
    uint8_t *arena_;
    size_t size_;
    TfLiteIntArray input_dims_ = REAL_INPUT;
    TfLiteIntArray output_dims_ = REAL_OUTPUT;
    TfLiteTensor input_ = {};
    TfLiteTensor output_ = {};
};
}  // namespace tflite
#endif
