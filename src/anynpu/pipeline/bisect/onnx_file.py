"""Sub-models of ONNX files. A pair of QuantizeLinear and DequantizeLinear belongs to the tensor that it rounds: a cut
goes in before the pair and comes out behind it, so that a runtime fuses in a part what it fuses in the whole."""

from __future__ import annotations

import functools
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path

import onnx
from onnx import helper

from anynpu.artifact import Manifest
from anynpu.errors import ConfigError
from anynpu.graph.fold import inner_graphs, names_read
from anynpu.graph.outline import Outline, outline
from anynpu.graph.shapes import dtype_of, infer, inputs_of, shape_of
from anynpu.pipeline.bisect.files import Fed, Place, cannot_cut, new_names
from anynpu.source.onnx_file import read
from anynpu.tensors import TensorSpec

MODEL = "model.onnx"
_PAIR = ("QuantizeLinear", "DequantizeLinear")


class OnnxFile:
    """An ONNX model as its file says it, float or with pairs."""

    suffix = ".onnx"

    def __init__(self, path: Path, format: str = "onnx", specs: Manifest | None = None) -> None:
        self.path, self.format = path, format
        model = read(path)
        self.model = onnx.inliner.inline_local_functions(model) if model.functions else model
        self.outline: Outline = outline(self.model)
        self.inputs = specs.inputs if specs else tuple(self._spec(v) for v in inputs_of(self.model))
        self.outputs = specs.outputs if specs else tuple(self._spec(v) for v in infer(self.model).graph.output)

    def _spec(self, value: onnx.ValueInfoProto) -> TensorSpec:
        shape = shape_of(value)
        fixed = tuple(size for size in shape if isinstance(size, int))
        if len(fixed) != len(shape):
            raise ConfigError(
                f"{self.path}: {value.name} has an open shape {list(shape)}",
                "fix it first: anynpu build --shape NAME=1,... and name the folder float of that build",
            )
        tensor = self.outline.tensors.get(value.name)
        layout = tensor.layout if tensor is not None and len(tensor.layout) == len(fixed) else ""
        return TensorSpec(value.name, fixed, dtype_of(value), layout)

    @property
    def quantised(self) -> bool:
        return any(node.op_type in _PAIR for node in self.model.graph.node)

    @functools.cached_property
    def _before_pair(self) -> dict[str, str]:
        """The tensor before a pair, by the one behind it."""
        stored = {n.output[0]: n.input[0] for n in self.model.graph.node if n.op_type == _PAIR[0]}
        behind = {n.output[0]: n.input[0] for n in self.model.graph.node if n.op_type == _PAIR[1]}
        return {name: stored[source] for name, source in behind.items() if source in stored}

    def places(self) -> Mapping[str, Place]:
        found = {}
        for name, tensor in self.outline.tensors.items():
            if tensor.constant:
                continue
            fed = tensor.value
            while fed in self._before_pair:
                fed = self._before_pair[fed]
            found[name] = Place(fed, tensor.value, tensor.shape)
        return found

    def cut(self, inputs: Sequence[Fed], outputs: Mapping[str, str], folder: Path) -> Manifest:
        graph, given = self.model.graph, {fed.own for fed in inputs}
        nodes, needed = self._needed(given, outputs.values())
        renamed = new_names(
            {fed.own: fed.name for fed in inputs} | {own: name for name, own in outputs.items()},
            needed,
        )
        types = {v.name: v for v in (*infer(self.model, strict=False).graph.value_info, *graph.output)}
        results = []
        for name, own in outputs.items():
            value = onnx.ValueInfoProto()
            value.CopyFrom(types.get(own, value))
            value.name = name
            results.append(value)
        part = helper.make_graph(
            [_renamed(node, renamed) for node in nodes],
            "part",
            [_value(fed) for fed in inputs],
            results,
            [tensor for tensor in graph.initializer if tensor.name in needed],
            sparse_initializer=[tensor for tensor in graph.sparse_initializer if tensor.values.name in needed],
        )
        model = helper.make_model(part, opset_imports=self.model.opset_import, ir_version=self.model.ir_version)
        onnx.save(model, folder / MODEL)
        return Manifest(
            self.format,
            MODEL,
            tuple(TensorSpec(f.name, f.values.shape, str(f.values.dtype), self._layout(f)) for f in inputs),
            tuple(self._result(value) for value in infer(model, strict=False).graph.output),
            details={"frozen": [], "degenerate": [], "index_sizes": {}},
        )

    def _needed(self, given: Collection[str], outputs: Iterable[str]) -> tuple[list[onnx.NodeProto], set[str]]:
        """Returns the nodes between tensors, and everything that they name."""
        graph = self.model.graph
        makers = {name: node for node in graph.node for name in node.output if name}
        stored = {tensor.name for tensor in graph.initializer} | {t.values.name for t in graph.sparse_initializer}
        needed, kept, waiting = set[str](), set[int](), list(outputs)
        while waiting:
            name = waiting.pop()
            if name in needed or name in given or not name:
                continue
            needed.add(name)
            if name in makers:
                kept.add(id(makers[name]))
                waiting.extend(names_read(makers[name]))
            elif name not in stored:
                raise cannot_cut(self.path, f"{name} is needed too")
        nodes = [node for node in graph.node if id(node) in kept]
        if twice := {name for node in nodes for name in node.output} & {*given}:
            raise cannot_cut(self.path, f"{min(twice)} is made by an operator that the part needs")
        return nodes, needed

    def _layout(self, fed: Fed) -> str:
        tensor = self.outline.tensors.get(fed.name)
        return tensor.layout if tensor is not None and len(tensor.layout) == fed.values.ndim else ""

    def _result(self, value: onnx.ValueInfoProto) -> TensorSpec:
        shape = tuple(size for size in shape_of(value) if isinstance(size, int))
        tensor = self.outline.tensors.get(value.name)
        layout = tensor.layout if tensor is not None and len(tensor.layout) == len(shape) else ""
        return TensorSpec(value.name, shape, dtype_of(value), layout)


def _value(fed: Fed) -> onnx.ValueInfoProto:
    kind = helper.np_dtype_to_tensor_dtype(fed.values.dtype)
    return helper.make_tensor_value_info(fed.name, kind, fed.values.shape)


def _renamed(node: onnx.NodeProto, names: Mapping[str, str]) -> onnx.NodeProto:
    """Returns a node with other names of tensors; inner graphs read them too."""
    copy = onnx.NodeProto()
    copy.CopyFrom(node)
    for field in (copy.input, copy.output):
        field[:] = [names.get(name, name) for name in field]
    for graph in inner_graphs(copy):
        for at, inner in enumerate(graph.node):
            graph.node[at].CopyFrom(_renamed(inner, names))
    return copy
