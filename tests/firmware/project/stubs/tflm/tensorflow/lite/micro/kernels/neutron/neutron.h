#ifndef NEUTRON_H
#define NEUTRON_H
#include "tensorflow/lite/micro/micro_mutable_op_resolver.h"
namespace tflite {
inline const char *GetString_NEUTRON_GRAPH() { return "NeutronGraph"; }
inline TFLMRegistration *Register_NEUTRON_GRAPH() { return nullptr; }
}  // namespace tflite
#endif
