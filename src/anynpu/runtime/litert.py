"""LiteRT (TensorFlow Lite) with its reference kernels.

Its default kernels (XNNPACK) are up to 30 steps of an int8 output away from its own reference ones, which stay within
two of TFLite-Micro; a check wants the reference.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping

from anynpu.artifact import Artifact
from anynpu.errors import DeviceError, IntegrityError
from anynpu.tensors import Array


class LiteRtSession:
    """Runs TFLite models on the host."""

    name = "litert"
    formats = ("tflite", "tflite-float")
    rank = 1
    what = "LiteRT reference kernels on this host's CPU"

    def __init__(self, artifact: Artifact) -> None:
        from ai_edge_litert.interpreter import Interpreter, OpResolverType

        self.inputs = artifact.manifest.inputs
        self.outputs = artifact.manifest.outputs
        try:
            self._interpreter = Interpreter(
                model_path=str(artifact.main), experimental_op_resolver_type=OpResolverType.BUILTIN_REF
            )
            self._interpreter.allocate_tensors()
        except (ValueError, RuntimeError) as error:
            raise IntegrityError(f"LiteRT refuses the model: {str(error).splitlines()[0]}") from error

    @staticmethod
    def missing() -> str:
        return "" if importlib.util.find_spec("ai_edge_litert") else "ai-edge-litert is not installed"

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        for spec, detail in zip(self.inputs, self._interpreter.get_input_details(), strict=True):
            self._interpreter.set_tensor(detail["index"], inputs[spec.name])
        try:
            self._interpreter.invoke()
        except RuntimeError as error:
            raise DeviceError(f"LiteRT failed: {str(error).splitlines()[0]}", call="invoke") from error
        details = self._interpreter.get_output_details()
        return {
            spec.name: self._interpreter.get_tensor(detail["index"])
            for spec, detail in zip(self.outputs, details, strict=True)
        }

    def close(self) -> None:
        self._interpreter = None
