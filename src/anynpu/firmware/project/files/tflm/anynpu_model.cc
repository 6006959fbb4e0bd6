// The model interface over TFLite-Micro. Generated; do not edit.
#include "anynpu_model.h"

#include <cstddef>
#include <new>

#include "anynpu_model_data.h"
@INCLUDES@#include "tensorflow/lite/micro/micro_interpreter.h"
#include "tensorflow/lite/micro/micro_mutable_op_resolver.h"
#include "tensorflow/lite/schema/schema_generated.h"

// Where the arena is linked, such as __attribute__((section(".bss.npu"))): memory that the NPU can reach.
#ifndef ANYNPU_ARENA_ATTRIBUTE
#define ANYNPU_ARENA_ATTRIBUTE
#endif

namespace {

alignas(16) uint8_t arena[ANYNPU_ARENA_BYTES] ANYNPU_ARENA_ATTRIBUTE;

// Exactly the operators of the compiled file.
using Resolver = tflite::MicroMutableOpResolver<@COUNT@>;

// Built in place, so that no heap is needed and the model can be started again.
alignas(Resolver) uint8_t resolver_memory[sizeof(Resolver)];
alignas(tflite::MicroInterpreter) uint8_t interpreter_memory[sizeof(tflite::MicroInterpreter)];
tflite::MicroInterpreter *interpreter = nullptr;

anynpu_tensor inputs[] = {
@INPUTS@
};
anynpu_tensor outputs[] = {
@OUTPUTS@
};

// Where each tensor stands among those of the compiled file.
const size_t input_order[] = {@INPUT_ORDER@};
const size_t output_order[] = {@OUTPUT_ORDER@};

int add_operators(Resolver *resolver)
{
@ADDS@
    return 0;
}

// Takes the address of a tensor of the interpreter; its size must be the one that was promised.
bool adopt(anynpu_tensor *ours, TfLiteTensor *theirs)
{
    if (theirs == nullptr || theirs->bytes != ours->bytes || theirs->dims->size != ours->rank) {
        return false;
    }
    for (int i = 0; i < theirs->dims->size; ++i) {
        if (theirs->dims->data[i] != ours->shape[i]) {
            return false;
        }
    }
    ours->data = theirs->data.data;
    return true;
}

}  // namespace

int anynpu_init(void)
{
    if (interpreter != nullptr) {
        interpreter->~MicroInterpreter();
        interpreter = nullptr;
    }
    Resolver *resolver = new (resolver_memory) Resolver();
    const int added = add_operators(resolver);
    if (added != 0) {
        return added;
    }
    const tflite::Model *model = tflite::GetModel(anynpu_model_data);
    if (model->version() != TFLITE_SCHEMA_VERSION) {
        return 2;
    }
    interpreter = new (interpreter_memory) tflite::MicroInterpreter(model, *resolver, arena, sizeof arena);
    if (interpreter->AllocateTensors() != kTfLiteOk) {
        return 3;
    }
    for (int i = 0; i < ANYNPU_NUM_INPUTS; ++i) {
        if (!adopt(&inputs[i], interpreter->input(input_order[i]))) {
            return 4;
        }
    }
    for (int i = 0; i < ANYNPU_NUM_OUTPUTS; ++i) {
        if (!adopt(&outputs[i], interpreter->output(output_order[i]))) {
            return 4;
        }
    }
    return 0;
}

const anynpu_tensor *anynpu_input(int i)
{
    return i >= 0 && i < ANYNPU_NUM_INPUTS ? &inputs[i] : nullptr;
}

const anynpu_tensor *anynpu_output(int i)
{
    return i >= 0 && i < ANYNPU_NUM_OUTPUTS ? &outputs[i] : nullptr;
}

int anynpu_invoke(void)
{
    return interpreter != nullptr && interpreter->Invoke() == kTfLiteOk ? 0 : 1;
}

uint32_t anynpu_arena_used(void)
{
    return interpreter != nullptr ? static_cast<uint32_t>(interpreter->arena_used_bytes()) : 0u;
}
