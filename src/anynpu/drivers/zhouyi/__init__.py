"""The kernel driver of the Zhouyi Z3 NPU (CIX SKY1): a cloned tree made to build on every kernel, installed and undone."""
