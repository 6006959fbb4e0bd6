"""Rockchip NPUs: ONNX models become .rknn files by RKNN-Toolkit2."""

from anynpu.targets.rknn.target import Rknn

__all__ = ["Rknn"]
