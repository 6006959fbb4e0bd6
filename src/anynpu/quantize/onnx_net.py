"""ONNX models as the repairs see and change them."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import onnx
from onnx import NodeProto, TensorProto, helper, numpy_helper

from anynpu.graph.attributes import attribute
from anynpu.graph.fold import copied
from anynpu.graph.scalars import reads_numbers, value_of
from anynpu.quantize.fitting import Window
from anynpu.quantize.net import Change, Kind, Layer, Net, Operation, Origin, Run
from anynpu.runtime.ort import lent_outputs, open_session
from anynpu.tensors import Array

MOVES = ("Reshape", "Transpose", "Squeeze", "Unsqueeze", "Flatten", "Identity")
"""Operators that change where values stand, and none of the values."""
SCALED = "/scaled"
"""What the name of a tensor whose channels are louder than the model's own ends with."""
_KINDS: Mapping[str, Kind] = {
    "Add": "add",
    "Mul": "multiply",
    "Div": "divide",
    "Sigmoid": "sigmoid",
    "Softmax": "softmax",
    "LayerNormalization": "norm",
    "RMSNormalization": "norm",
    "SimplifiedLayerNormalization": "norm",
    "Sqrt": "root",
    "Reciprocal": "root",
    "Relu": "rectifier",
    "ReduceMax": "largest",
}
_FLOAT_TYPES = (TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.DOUBLE)
_PLAIN_GEMM = {"alpha": 1.0, "beta": 1.0, "transA": 0.0}


@dataclass(frozen=True)
class OnnxForm:
    """A float ONNX model; `changed` gives what is louder a name of its own, the old ones keep what they stood for."""

    model: onnx.ModelProto
    origins: Mapping[str, Origin] = field(default_factory=dict)

    @property
    def operators(self) -> Sequence[NodeProto]:
        nodes: Sequence[NodeProto] = self.model.graph.node
        return nodes

    def net(self) -> Net:
        return net_of(self.model.graph)

    def run(self, names: Collection[str] = ()) -> Run:
        return runner(self.model, names, reuse=True)

    def changed(self, change: Change) -> OnnxForm:
        result = copied(self.model)
        graph = result.graph
        for tensor in graph.initializer:
            if tensor.name in change.stored:
                values = change.stored[tensor.name].astype(numpy_helper.to_array(tensor).dtype)
                tensor.CopyFrom(numpy_helper.from_array(values, tensor.name))
        infos = {value.name: value for value in graph.value_info}
        for name in change.factors:
            if name in infos:
                value = graph.value_info.add()
                value.CopyFrom(infos[name])
                value.name = name + SCALED
        nodes: list[NodeProto] = []
        written: set[str] = set()
        for node in graph.node:
            for place, name in enumerate(node.input):
                if name not in change.factors:
                    continue
                if node.output[0] not in change.restored.get(name, ()):
                    node.input[place] = name + SCALED
                elif name not in written:
                    inverse = f"{name}{SCALED}/inverse"  # a name that no exporter gives
                    graph.initializer.append(numpy_helper.from_array(change.inverse(name), inverse))
                    nodes.append(helper.make_node("Mul", [name + SCALED, inverse], [name], name=f"{name}/restored"))
                    written.add(name)
            for place, name in enumerate(node.output):
                node.output[place] = name + SCALED if name in change.factors else name
            nodes.append(node)
        del graph.node[:]
        graph.node.extend(nodes)
        scaled = {
            name + SCALED: self.origins.get(name, Origin(name)).louder(factors, change.axes[name])
            for name, factors in change.factors.items()
        }
        return OnnxForm(result, {**self.origins, **scaled})


def net_of(graph: onnx.GraphProto) -> Net:
    """Returns an ONNX graph as the repairs see it."""
    stored = {tensor.name: tensor for tensor in graph.initializer}
    values = (*graph.input, *graph.value_info, *graph.output)
    shapes = {value.name: [dim.dim_value for dim in value.type.tensor_type.shape.dim] for value in values}
    numbers = {
        name: numpy_helper.to_array(tensor).astype(np.float64).reshape(())
        for name, tensor in stored.items()
        if math.prod(tensor.dims) == 1 and tensor.data_type in (TensorProto.FLOAT, TensorProto.DOUBLE)
    }
    return Net(
        [_operation(node, stored, numbers, len(shapes.get(node.output[0], ()))) for node in graph.node],
        frozenset(value.name for value in graph.output),
        shapes,
        stored.keys(),
        lambda name: np.asarray(numpy_helper.to_array(stored[name])),
        numbers,
    )


def _operation(
    node: NodeProto, stored: Mapping[str, TensorProto], numbers: Mapping[str, Array], rank: int
) -> Operation:
    layer = _layer(node, stored)
    kind = _KINDS.get(node.op_type, "other") if layer is None else "layer"
    if node.op_type == "Clip" and len(node.input) > 1 and float(numbers.get(node.input[1], np.ones(()))) == 0.0:
        kind = "rectifier"
    filled = node.input[2] if node.op_type == "Pad" and len(node.input) > 2 else ""
    mode = next((item.s for item in node.attribute if item.name == "mode"), b"constant")
    if node.op_type == "Pad" and mode == b"constant" and not (filled and numbers.get(filled, np.ones(()))):
        kind = "pad"
    parameters = tuple(name for name in node.input[1:3] if name)
    if kind == "norm" and (attribute(node, "axis", -1) not in (-1, rank - 1) or not _float32(parameters, stored)):
        kind = "other"
    return Operation(
        kind,
        tuple(node.input),
        tuple(node.output),
        layer,
        partial(_computed, node) if reads_numbers(node) else None,
        moves=node.input[0] if node.op_type in MOVES else "",
        reshapes=node.op_type == "Reshape",
        joins=tuple(node.input[: None if node.op_type == "Concat" else 1 if node.op_type in MOVES else 0]),
        parameters=parameters if kind == "norm" else (),
        axis=int(attribute(node, "axis", -1)),
    )


def _computed(node: NodeProto, *operands: Array) -> Array:
    single = all(each is None or each.dtype == np.float32 for each in operands)
    return value_of(node, dict(zip(node.input, operands, strict=True)), np.float32 if single else np.float64)


def _float32(names: Collection[str], stored: Mapping[str, TensorProto]) -> bool:
    return all(name in stored and stored[name].data_type == TensorProto.FLOAT for name in names)


def _layer(node: NodeProto, stored: Mapping[str, TensorProto]) -> Layer | None:
    """Returns the layer that a node is: a convolution or product of something computed with stored numbers."""
    if node.op_type not in ("Conv", "Gemm", "MatMul") or node.input[0] in stored:
        return None
    if not _float32([name for name in node.input[1:] if name], stored):
        return None
    dims, bias = tuple(stored[node.input[1]].dims), node.input[2] if len(node.input) > 2 else ""
    if len(dims) < 2:
        return None
    if node.op_type == "MatMul":
        return Layer(node.input[1], "", dims, len(dims) - 1, len(dims) - 2, dense=True)
    if node.op_type == "Gemm":
        outputs = 0 if attribute(node, "transB", 0) else 1
        plain = all(attribute(node, name, default) == default for name, default in _PLAIN_GEMM.items())
        plain = plain and (not bias or tuple(stored[bias].dims) == (dims[outputs],))
        return Layer(node.input[1], bias, dims, outputs, 1 - outputs, dense=True) if plain else None
    stated = {item.name: tuple(item.ints) for item in node.attribute if item.ints}
    automatic = next((item.s for item in node.attribute if item.name == "auto_pad"), b"NOTSET")
    groups, window = int(attribute(node, "group", 1)), None
    if len(dims) in (3, 4) and automatic in (b"NOTSET", b"VALID"):
        axes = len(dims) - 2
        strides, dilations = (stated.get(name, (1,) * axes) for name in ("strides", "dilations"))
        pads = stated.get("pads", (0,) * 2 * axes)
        # One axis is that of an image of one row.
        row, edge = (1,) * (2 - axes), (0,) * (2 - axes)
        window = Window(row + dims[2:], row + strides, row + dilations, edge + pads[:axes] + edge + pads[axes:], groups)
    return Layer(node.input[1], bias, dims, 0, 1, groups, channel_axis=1, window=window)


def runner(model: onnx.ModelProto, wanted: Collection[str] = (), reuse: bool = False) -> Run:
    """Returns a function that gives every activation of the model for one sample, or those that are wanted.

    With `reuse` it lends them: the next sample overwrites the arrays, and nobody may keep them.
    """
    copy = copied(model)
    present = {value.name for value in copy.graph.output}
    computed = {name for node in copy.graph.node for name in node.output}
    for value in copy.graph.value_info:
        named = not wanted or value.name in wanted
        if named and value.name in computed - present and value.type.tensor_type.elem_type in _FLOAT_TYPES:
            copy.graph.output.append(value)
    # Fused operators would not give the tensors that are asked for.
    session = open_session(copy.SerializeToString(), threads=1, plain=True)
    names = [output.name for output in session.get_outputs() if not wanted or output.name in wanted]
    lent = lent_outputs(session, names) if reuse else None

    def run(sample: dict[str, Array]) -> dict[str, Array]:
        if lent is not None:
            return lent(sample) | sample
        # Without a name, ONNX Runtime gives all outputs.
        return (dict(zip(names, session.run(names, sample), strict=True)) if names else {}) | sample

    return run
