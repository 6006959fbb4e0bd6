"""Sub-models of ONNX files. A pair of QuantizeLinear and DequantizeLinear belongs to the tensor that it rounds: a cut
goes in before the pair and comes out behind it, so that a runtime fuses in a part what it fuses in the whole."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from anynpu.artifact import Manifest
from anynpu.errors import ConfigError
from anynpu.graph.outline import Outline, outline
from anynpu.graph.part import before_pairs, sub_model
from anynpu.graph.shapes import dtype_of, infer, inputs_of, shape_of
from anynpu.pipeline.bisect.files import Fed, Place
from anynpu.source.onnx_file import read
from anynpu.tensors import TensorSpec

MODEL = "model.onnx"


class OnnxFile:
    """An ONNX model as its file says it, float or with pairs."""

    suffix = ".onnx"

    def __init__(self, path: Path, format: str = "onnx", specs: Manifest | None = None) -> None:
        self.path, self.format = path, format
        import onnx
        import onnx.inliner

        model = read(path)
        self.model = onnx.inliner.inline_local_functions(model) if model.functions else model
        self.outline: Outline = outline(self.model)
        self._before_pair = before_pairs(self.model)
        self.inputs = specs.inputs if specs else tuple(self._spec(v) for v in inputs_of(self.model))
        self.outputs = specs.outputs if specs else tuple(self._spec(v) for v in infer(self.model).graph.output)

    def _spec(self, value: Any) -> TensorSpec:
        shape = shape_of(value)
        fixed = tuple(size for size in shape if isinstance(size, int))
        if len(fixed) != len(shape):
            raise ConfigError(
                f"{self.path}: {value.name} has an open shape {list(shape)}",
                "fix it first: anynpu build --shape NAME=1,... and name the folder float of that build",
            )
        return TensorSpec(value.name, fixed, dtype_of(value), self._layout(value.name, len(fixed)))

    @property
    def quantised(self) -> bool:
        return bool(self._before_pair)

    def places(self) -> Mapping[str, Place]:
        places = {}
        for name, tensor in self.outline.tensors.items():
            if tensor.constant:
                continue
            fed = tensor.value
            while fed in self._before_pair:
                fed = self._before_pair[fed]
            places[name] = Place(fed, tensor.value, tensor.shape)
        return places

    def cut(self, inputs: Sequence[Fed], outputs: Mapping[str, str], folder: Path) -> Manifest:
        import onnx

        names = {fed.own: fed.name for fed in inputs} | {own: name for name, own in outputs.items()}
        model = sub_model(self.model, {fed.own: fed.values for fed in inputs}, outputs.values(), names)
        onnx.save(model, folder / MODEL)
        return Manifest(
            self.format,
            MODEL,
            tuple(
                TensorSpec(f.name, f.values.shape, str(f.values.dtype), self._layout(f.name, f.values.ndim))
                for f in inputs
            ),
            tuple(
                TensorSpec(value.name, shape, dtype_of(value), self._layout(value.name, len(shape)))
                for value in infer(model, strict=False).graph.output
                for shape in [tuple(size for size in shape_of(value) if isinstance(size, int))]
            ),
            details={"frozen": [], "degenerate": [], "index_sizes": {}},
        )

    def _layout(self, name: str, axes: int) -> str:
        tensor = self.outline.tensors.get(name)
        return tensor.layout if tensor is not None and len(tensor.layout) == axes else ""
