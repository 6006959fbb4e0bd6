"""Models for the VitisAI provider on ONNX Runtime's CPU kernels: the quantised model, without the NPU."""

from __future__ import annotations

from anynpu.runtime.ort import OrtSession


class QuarkSession(OrtSession):
    """Runs what the Ryzen AI target makes; its operators are ONNX's own and ONNX Runtime's."""

    name = "quark"
    formats = ("onnx-vitisai",)
    rank = 50
    what = "ONNX Runtime's CPU kernels, standing in for the Ryzen AI NPU"
