#ifndef SCHEMA_GENERATED_H
#define SCHEMA_GENERATED_H
#include <cstdint>
#define TFLITE_SCHEMA_VERSION 3
namespace tflite {
struct Model {
    uint32_t version() const { return 3; }
};
inline const Model *GetModel(const void *data) { return static_cast<const Model *>(data); }
}  // namespace tflite
#endif
