/* TFLite-Micro's resolver: as many operators as its size says, and an error for one more. */
#ifndef MICRO_MUTABLE_OP_RESOLVER_H
#define MICRO_MUTABLE_OP_RESOLVER_H
enum TfLiteStatus { kTfLiteOk, kTfLiteError };
namespace tflite {
struct TFLMRegistration;
struct MicroOpResolver {
    unsigned added = 0;
};
template <unsigned int count>
class MicroMutableOpResolver : public MicroOpResolver {
  public:
    TfLiteStatus AddEthosU() { return add(); }
    TfLiteStatus AddSpaceToBatchNd() { return add(); }
    TfLiteStatus AddCustom(const char *, TFLMRegistration *) { return add(); }

  private:
    TfLiteStatus add() { return ++added <= count ? kTfLiteOk : kTfLiteError; }
};
}  // namespace tflite
#endif
