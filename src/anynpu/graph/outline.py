"""The nodes and tensors of an ONNX graph as plain data: what a drawing of it shows.

Pairs of QuantizeLinear and DequantizeLinear are not nodes here: they are the scale and the zero point of a tensor.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np
import onnx
import onnx.inliner
from onnx import GraphProto, ModelProto, numpy_helper

from anynpu.errors import AnyNpuError
from anynpu.graph.cost import constant_names, cost
from anynpu.graph.fold import static_shapes
from anynpu.graph.layouts import tensor_layouts
from anynpu.graph.shapes import infer, inputs_of

_QUANTIZE, _DEQUANTIZE = "QuantizeLinear", "DequantizeLinear"
_STORED_SUFFIX = "_quantized"


@dataclass(frozen=True)
class TensorOutline:
    """A tensor; `value` is the file's own name of what holds its real numbers, which a pair gives another name."""

    name: str
    shape: tuple[int, ...] | None
    dtype: str
    layout: str = ""
    scale: tuple[float, ...] = ()
    zero_point: tuple[int, ...] = ()
    constant: bool = False
    value: str = ""


@dataclass(frozen=True)
class NodeOutline:
    """An operator; `kernels` are the file's nodes that it stands for: itself and its conversions."""

    name: str
    kind: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    macs: int | None = None
    kernels: tuple[str, ...] = ()


@dataclass(frozen=True)
class Outline:
    """Every operator that an input reaches, in order, and every tensor these read or make."""

    nodes: tuple[NodeOutline, ...]
    tensors: Mapping[str, TensorOutline]


@dataclass
class _Pair:
    """What the conversions behind one tensor say of it."""

    scale: str = ""
    zero_point: str = ""
    dtype: str = ""
    value: str = ""
    nodes: list[str] = field(default_factory=list)


class _Pairs:
    """The conversions of a graph, by the name of the tensor before them."""

    def __init__(self) -> None:
        self.stands_for: dict[str, str] = {}
        self.by_root: dict[str, _Pair] = {}

    def name(self, name: str) -> str:
        return self.stands_for.get(name, name)

    def rename(self, old: str, new: str) -> None:
        self.by_root[new] = self.by_root.pop(old)
        self.by_root[new].value = self.by_root[new].value or old
        for name, other in [*self.stands_for.items(), (old, old)]:
            if other == old:
                self.stands_for[name] = new


def outline(model: ModelProto) -> Outline:
    """Returns the operators and tensors of a float or QDQ model."""
    if model.functions:
        model = onnx.inliner.inline_local_functions(model)
    inferred = infer(model, strict=False)
    graph = inferred.graph
    pairs = _pairs(graph, _dtypes(graph))
    # A tensor that leaves the graph through a pair gets the name of the output, which users know it by
    borders = {value.name for value in (*inferred.graph.input, *inferred.graph.output)}
    for value in inferred.graph.output:
        root = pairs.name(value.name)
        if root != value.name and root not in borders:
            pairs.rename(root, value.name)
    constants = constant_names(graph)
    live = [n for n in graph.node if n.op_type not in (_QUANTIZE, _DEQUANTIZE) and not set(n.output) <= constants]
    tensors = _tensors(inferred, pairs, {pairs.name(name) for name in constants})
    try:
        macs = {node.name: node.macs for node in cost(model).nodes}
    except AnyNpuError:  # some shape is not known
        macs = None
    nodes = list[NodeOutline]()
    for node in live:
        name = node.name or node.output[0]
        inputs = tuple(pairs.name(i) for i in node.input if is_shown(tensors.get(pairs.name(i))))
        outputs = tuple(pairs.name(o) for o in node.output if o)
        weights = [i for i in inputs if tensors[i].constant]
        conversions = (kernel for tensor in (*weights, *outputs) for kernel in pairs.by_root.get(tensor, _Pair()).nodes)
        count = None if macs is None else macs.get(name, 0)
        nodes.append(NodeOutline(name, node.op_type, inputs, outputs, count, (name, *conversions)))
    used = {name for each in nodes for name in (*each.inputs, *each.outputs)}
    used |= {pairs.name(value.name) for value in (*inputs_of(model), *graph.output)}
    return Outline(tuple(nodes), {name: tensor for name, tensor in tensors.items() if name in used})


def _pairs(graph: GraphProto, dtypes: Mapping[str, str]) -> _Pairs:
    pairs = _Pairs()
    stored = {tensor.name for tensor in graph.initializer}
    for node in graph.node:
        if node.op_type not in (_QUANTIZE, _DEQUANTIZE):
            continue
        source, result = node.input[0], node.output[0]
        if node.op_type == _DEQUANTIZE and source in stored:
            pairs.stands_for[source] = source.removesuffix(_STORED_SUFFIX)
        root = pairs.stands_for[result] = pairs.name(source)
        pair = pairs.by_root.setdefault(root, _Pair())
        pair.scale, pair.zero_point = node.input[1], node.input[2] if len(node.input) > 2 else ""
        # The zero point has the type of the integers, which shape inference does not know of contributed operators.
        pair.dtype = dtypes.get(pair.zero_point) or dtypes.get(result if node.op_type == _QUANTIZE else source, "")
        pair.nodes.append(node.name)
        if node.op_type == _DEQUANTIZE:
            pair.value = result
    return pairs


def _dtypes(graph: GraphProto) -> dict[str, str]:
    kinds = {v.name: v.type.tensor_type.elem_type for v in (*graph.input, *graph.value_info, *graph.output)}
    kinds |= {tensor.name: tensor.data_type for tensor in graph.initializer}
    names = {name: onnx.TensorProto.DataType.Name(kind).lower() for name, kind in kinds.items() if kind}
    return {name: {"float": "float32", "double": "float64"}.get(kind, kind) for name, kind in names.items()}


def _tensors(model: ModelProto, pairs: _Pairs, constants: set[str]) -> dict[str, TensorOutline]:
    graph = model.graph
    shapes, dtypes, layouts = static_shapes(graph), _dtypes(graph), tensor_layouts(model)
    arrays = {tensor.name: tensor for tensor in graph.initializer}
    outlines: dict[str, TensorOutline] = {}
    produced = (name for node in graph.node for name in node.output if name)
    for name in (*(value.name for value in graph.input), *arrays, *produced):
        root = pairs.name(name)
        plain, pair = outlines.get(root) or TensorOutline(root, None, ""), pairs.by_root.get(root, _Pair())
        outlines[root] = replace(
            plain,
            shape=plain.shape if plain.shape is not None else shapes.get(name),
            dtype=pair.dtype or plain.dtype or dtypes.get(name, ""),
            layout=plain.layout or layouts.get(name, ""),
            scale=tuple(map(float, _values(arrays, pair.scale))),
            zero_point=tuple(map(int, _values(arrays, pair.zero_point))),
            constant=root in constants,
            value=pair.value or root,
        )
    return outlines


def _values(arrays: Mapping[str, onnx.TensorProto], name: str) -> list[float]:
    """Returns the numbers of a stored tensor; a scale that is computed has none to show."""
    return np.ravel(numpy_helper.to_array(arrays[name])).tolist() if name in arrays else []


def is_shown(tensor: TensorOutline | None) -> bool:
    """Tells whether a tensor is more than a setting of its operator, such as a shape, axes or a limit."""
    if tensor is None or not tensor.constant:
        return tensor is not None
    return bool(tensor.shape) and (bool(tensor.scale) or tensor.dtype.startswith("float"))
