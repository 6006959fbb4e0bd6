"""ONNX Runtime on the CPU, for float and QDQ models."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from anynpu.artifact import Artifact
from anynpu.errors import DeviceError, IntegrityError
from anynpu.tensors import Array


def inference_session(model: str | bytes, threads: int = 0) -> Any:
    """Returns an ONNX Runtime session on the CPU; a model it refuses raises IntegrityError."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.intra_op_num_threads = threads
    try:
        return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # the binding raises a dozen unrelated classes
        first = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise IntegrityError(f"ONNX Runtime refuses the model: {first}") from error


class OrtSession:
    """Runs ONNX models."""

    name = "ort"
    formats = ("onnx", "onnx-ort")
    rank = 0
    what = "ONNX Runtime on this host's CPU"

    def __init__(self, artifact: Artifact) -> None:
        self.inputs = artifact.manifest.inputs
        self.outputs = artifact.manifest.outputs
        self._session = inference_session(str(artifact.main))

    @staticmethod
    def missing() -> str:
        return ""

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        names = [spec.name for spec in self.outputs]
        try:
            values = self._session.run(names, dict(inputs))
        except Exception as error:  # see inference_session
            raise DeviceError(f"ONNX Runtime failed: {str(error).splitlines()[0]}", call="run") from error
        return dict(zip(names, values, strict=True))

    def close(self) -> None:
        self._session = None
