"""Qualcomm's Hexagon NPU (HTP) through ONNX Runtime's QNN provider."""

from anynpu.targets.qnn.target import Qnn

__all__ = ["Qnn"]
