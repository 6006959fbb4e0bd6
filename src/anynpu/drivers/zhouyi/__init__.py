"""The kernel driver of the Zhouyi Z3 NPU (CIX SKY1): a cloned tree made to fit every kernel, built and installed."""
