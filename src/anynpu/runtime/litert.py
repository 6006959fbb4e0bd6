"""LiteRT (TensorFlow Lite) with its reference kernels.

Its default kernels (XNNPACK) are up to 30 steps of an int8 output away from its own reference ones, which stay within
two of TFLite-Micro; a check wants the reference.
"""

from __future__ import annotations

import importlib.util
import warnings
from collections.abc import Iterable, Mapping
from typing import Any

from anynpu.artifact import Artifact
from anynpu.errors import DeviceError, IntegrityError, first_line
from anynpu.runtime import tflite_form
from anynpu.tensors import Array, Quantization


def _interpreter(artifact: Artifact, kernels: str, keep: bool) -> Any:
    from ai_edge_litert.interpreter import Interpreter, OpResolverType

    tflite_form.check(artifact.main.read_bytes(), str(artifact.main))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # keeping all tensors takes memory: it is what is asked for
            interpreter = Interpreter(
                model_path=str(artifact.main),
                experimental_op_resolver_type=OpResolverType[kernels],
                experimental_preserve_all_tensors=keep,
            )
        interpreter.allocate_tensors()
    except (ValueError, RuntimeError) as error:
        raise IntegrityError(f"LiteRT refuses the model: {first_line(error)}") from error
    return interpreter


class LiteRtSession:
    """Runs TFLite models on the host."""

    name = "litert"
    formats = ("tflite", "tflite-float", "tflite-given")
    rank = 1
    package = "ai-edge-litert"
    what = "LiteRT reference kernels on this host's CPU"
    packages = ("ai-edge-litert",)

    def __init__(self, artifact: Artifact) -> None:
        self.inputs = artifact.manifest.inputs
        self.outputs = artifact.manifest.outputs
        self._interpreter = _interpreter(artifact, "BUILTIN_REF", keep=False)

    @staticmethod
    def missing() -> str:
        return "" if importlib.util.find_spec("ai_edge_litert") else "ai-edge-litert is not installed"

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        for spec, detail in zip(self.inputs, self._interpreter.get_input_details(), strict=True):
            self._interpreter.set_tensor(detail["index"], inputs[spec.name])
        try:
            self._interpreter.invoke()
        except RuntimeError as error:
            raise DeviceError(f"LiteRT failed: {first_line(error)}", call="invoke") from error
        details = self._interpreter.get_output_details()
        return {
            spec.name: self._interpreter.get_tensor(detail["index"])
            for spec, detail in zip(self.outputs, details, strict=True)
        }

    def close(self) -> None:
        self._interpreter = None


class LiteRtInner(LiteRtSession):
    """Runs a TFLite model and gives inner tensors too, as real numbers.

    Integers run on the reference kernels. Floating point runs on the plain ones without a delegate: they are five times
    as fast and agree to the last bits, and a delegate would keep inner tensors to itself.
    """

    def __init__(self, artifact: Artifact) -> None:
        self.inputs = artifact.manifest.inputs
        self.outputs = artifact.manifest.outputs
        real = artifact.manifest.format == "tflite-float"
        kernels = "BUILTIN_WITHOUT_DEFAULT_DELEGATES" if real else "BUILTIN_REF"
        self._interpreter = _interpreter(artifact, kernels, keep=True)
        self._details = {detail["name"]: detail for detail in reversed(self._interpreter.get_tensor_details())}

    def tensors(self, inputs: Mapping[str, Array], names: Iterable[str]) -> dict[str, Array]:
        """Runs the model once on stored inputs and returns the named tensors that it has, as real numbers."""
        self.run(inputs)
        return {name: self._real(self._details[name]) for name in names if name in self._details}

    def _real(self, detail: Mapping[str, Any]) -> Array:
        stored: Array = self._interpreter.get_tensor(detail["index"])
        found = detail["quantization_parameters"]
        scales = tuple(found["scales"].tolist())
        if not scales:
            return stored
        axis = int(found["quantized_dimension"]) if len(scales) > 1 else None
        return Quantization(scales, tuple(found["zero_points"].tolist()), axis).dequantize(stored)
