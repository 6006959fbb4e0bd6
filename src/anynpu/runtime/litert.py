"""LiteRT (TensorFlow Lite) with its reference kernels.

Its default kernels (XNNPACK) are up to 30 steps of an int8 output away from its own reference ones, which stay within
two of TFLite-Micro; a check wants the reference.
"""

from __future__ import annotations

import importlib.util
import warnings
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypedDict

import numpy as np

from anynpu.artifact import Artifact
from anynpu.errors import DeviceError, ToolMissing, first_line
from anynpu.foreign import LITERT, mapped
from anynpu.runtime import tflite_form
from anynpu.tensors import Array, Quantization

REFERENCE, PLAIN, DELEGATED = "BUILTIN_REF", "BUILTIN_WITHOUT_DEFAULT_DELEGATES", "BUILTIN"


def open_interpreter(
    model: Path | bytes,
    kernels: str = PLAIN,
    *,
    keep: bool = False,
    threads: int | None = None,
    shapes: Mapping[str, Sequence[int]] = {},
) -> Any:
    """Returns LiteRT's interpreter of a model, ready to run; with `keep` it gives inner tensors too.

    `shapes` are those of inputs that the model leaves open.
    """
    try:
        from ai_edge_litert.interpreter import Interpreter, OpResolverType
    except ImportError as error:
        raise ToolMissing("ai-edge-litert is not installed", "pip install anynpu[build]") from error
    source = {"model_content": model} if isinstance(model, bytes) else {"model_path": str(model)}
    with mapped(LITERT, "LiteRT refuses the model"):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # keeping all tensors takes memory: it is what is asked for
            interpreter = Interpreter(
                **source,
                num_threads=threads,
                experimental_op_resolver_type=OpResolverType[kernels],
                experimental_preserve_all_tensors=keep,
            )
        for detail in interpreter.get_input_details() if shapes else ():
            if detail["name"] in shapes:
                interpreter.resize_tensor_input(detail["index"], list(shapes[detail["name"]]))
        interpreter.allocate_tensors()
    # It reads the bytes for as long as it runs, and does not keep them itself.
    interpreter.model_in_memory = model
    return interpreter


class _Lent:
    """Memory of an interpreter that an array looks into; whoever holds the array holds the interpreter."""

    def __init__(self, interface: Mapping[str, Any], interpreter: Any) -> None:
        self.__array_interface__, self.interpreter = interface, interpreter


def lent_tensor(interpreter: Any, index: int) -> Array:
    """Returns a tensor where the interpreter holds it: nothing is copied, and the next run overwrites it."""
    held = interpreter.tensor(index)()
    # The array of the interpreter itself may not be there when it runs again.
    return np.asarray(_Lent(held.__array_interface__, interpreter)) if np.ndim(held) else np.array(held)


def _of(artifact: Artifact, kernels: str, keep: bool = False) -> Any:
    tflite_form.check(artifact.main.read_bytes(), str(artifact.main))
    return open_interpreter(artifact.main, kernels, keep=keep)


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
        self._interpreter = _of(artifact, REFERENCE)

    @staticmethod
    def missing() -> str:
        return "" if importlib.util.find_spec("ai_edge_litert") else "ai-edge-litert is not installed"

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        for spec, detail in zip(self.inputs, self._interpreter.get_input_details(), strict=True):
            self._interpreter.set_tensor(detail["index"], inputs[spec.name])
        try:
            self._interpreter.invoke()
        except LITERT as error:
            raise DeviceError(f"LiteRT failed: {first_line(error)}", call="invoke") from error
        details = self._interpreter.get_output_details()
        return {
            spec.name: self._interpreter.get_tensor(detail["index"])
            for spec, detail in zip(self.outputs, details, strict=True)
        }

    def close(self) -> None:
        self._interpreter = None


class TensorParameters(TypedDict):
    """How an interpreter says that a tensor is stored."""

    scales: Array
    zero_points: Array
    quantized_dimension: int


class TensorDetail(TypedDict):
    """What is read of an interpreter's account of a tensor."""

    name: str
    index: int
    quantization_parameters: TensorParameters


class LiteRtInner(LiteRtSession):
    """Runs a TFLite model and gives inner tensors too, as real numbers.

    Integers run on the reference kernels. Floating point runs on the plain ones without a delegate: they are five times
    as fast and agree to the last bits, and a delegate would keep inner tensors to itself.
    """

    def __init__(self, artifact: Artifact) -> None:
        self.inputs = artifact.manifest.inputs
        self.outputs = artifact.manifest.outputs
        real = artifact.manifest.format == "tflite-float"
        self._interpreter = _of(artifact, PLAIN if real else REFERENCE, keep=True)
        self._details = {detail["name"]: detail for detail in reversed(self._interpreter.get_tensor_details())}

    def tensors(self, inputs: Mapping[str, Array], names: Iterable[str]) -> dict[str, Array]:
        """Runs the model once on stored inputs and returns the named tensors that it has, as real numbers."""
        self.run(inputs)
        real: dict[str, Array] = {}
        for name in names:
            if name in self._details:
                detail: TensorDetail = self._details[name]
                form = detail["quantization_parameters"]
                scales, zeros = tuple(form["scales"].tolist()), tuple(form["zero_points"].tolist())
                axis = int(form["quantized_dimension"]) if len(scales) > 1 else None
                stored: Array = self._interpreter.get_tensor(detail["index"])
                real[name] = Quantization(scales, zeros, axis).dequantize(stored) if scales else stored
        return real
