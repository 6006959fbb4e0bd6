"""ONNX Runtime's own kernels, as they are without anynpu's repairs, and without any that are fused."""

from __future__ import annotations

from anynpu.artifact import Artifact
from anynpu.runtime.int8_sums import host
from anynpu.runtime.ort import OrtSession


class Native(OrtSession):
    """Runs ONNX models as anybody's onnxruntime does: on x86 without VNNI its int8 sums saturate."""

    what = "ONNX Runtime's native kernels on this host's CPU"
    kernels = "native"

    def __init__(self, artifact: Artifact) -> None:
        super().__init__(artifact)
        self._session = self.other_kernels().get(self.kernels, self._session)
        self.what = f"{type(self).what} ({host()})"


class Plain(Native):
    """Runs ONNX models operator by operator: the file's own arithmetic."""

    what = "ONNX Runtime without fused kernels on this host's CPU"
    kernels = "plain"
