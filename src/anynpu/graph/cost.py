"""Counts what a model costs: multiplications, stored weights, and the memory its activations need at once."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import onnx
import onnx.inliner
from onnx import GraphProto, ModelProto, NodeProto, TensorProto

from anynpu.errors import Finding, Unsupported
from anynpu.graph.fold import fold_constants, names_read, static_shapes
from anynpu.graph.shapes import VIEWS, infer, inputs_of

# Operators that give the same bytes another shape: no memory of their own.
_WITHOUT_MEMORY = {*VIEWS, "Identity", "Dropout"}
# Constants of these types say how to compute (shapes, axes, conditions), not what with.
_NOT_WEIGHTS = {TensorProto.INT64, TensorProto.BOOL, TensorProto.STRING}
# Float operands that are settings of the operator as well.
_SETTINGS = {"Resize", "Upsample", "Clip", "Pad"}

Shapes = Mapping[str, tuple[int, ...]]
Counter = Callable[[NodeProto, Shapes], int]


@dataclass(frozen=True)
class NodeCost:
    """What one operator costs."""

    name: str
    op_type: str
    macs: int
    parameters: int
    output_shape: tuple[int, ...]


@dataclass(frozen=True)
class Cost:
    """What a model costs; `nodes` has one entry for each operator that an input reaches, in order."""

    macs: int
    parameters: int
    weight_bytes: int
    peak_activation_elements: int
    nodes: tuple[NodeCost, ...]


def cost(model: ModelProto) -> Cost:
    """Returns the cost of a model with static shapes; elementwise operators count no multiplication."""
    if model.functions:
        model = onnx.inliner.inline_local_functions(model)
    graph = fold_constants(infer(model)).graph
    shapes = static_shapes(graph)
    unknown = [node for node in graph.node if any(name not in shapes for name in node.output if name)]
    if unknown:
        findings = [
            Finding("dynamic-shape", f"{node.op_type} has no static shape", node.name or node.output[0])
            for node in unknown
        ]
        raise Unsupported(
            f"the cost of a model with dynamic shapes is not known, first {findings[0]}",
            findings,
            "state the input shapes: --shape NAME=1,3,224,224",
        )
    constants = constant_names(graph)
    live = [node for node in graph.node if not set(node.output) <= constants]
    read = {name for node in graph.node if node.op_type not in _SETTINGS for name in node.input}
    read |= {node.input[0] for node in graph.node if node.op_type in _SETTINGS}
    weights = {
        tensor.name: tensor
        for tensor in graph.initializer
        if tensor.name in read and tensor.data_type not in _NOT_WEIGHTS
    }
    nodes = []
    for node, count in zip(live, _parameters_of(live, graph, weights), strict=True):
        counter = _COUNTERS.get(node.op_type) if node.domain in ("", "ai.onnx") else None
        macs, shape = counter(node, shapes) if counter else 0, shapes[next(name for name in node.output if name)]
        nodes.append(NodeCost(node.name or node.output[0], node.op_type, macs, count, shape))
    return Cost(
        macs=sum(node.macs for node in nodes),
        parameters=sum(math.prod(tensor.dims) for tensor in weights.values()),
        weight_bytes=sum(_stored_bytes(tensor) for tensor in weights.values()),
        peak_activation_elements=_peak(live, model, shapes, constants),
        nodes=tuple(nodes),
    )


def constant_names(graph: GraphProto) -> set[str]:
    """Returns the tensors that no input reaches: stored ones and what is made of them, as dequantised weights."""
    names = {tensor.name for tensor in graph.initializer} | {""}
    for node in graph.node:
        if set(node.input) <= names:
            names |= set(node.output)
    return names


def _stored_bytes(tensor: TensorProto) -> int:
    name = TensorProto.DataType.Name(tensor.data_type)
    bits = 4 if name.endswith("INT4") or name.startswith("FLOAT4") else 2 if name.endswith("INT2") else 0
    bits = bits or onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type).itemsize * 8
    return int(math.prod(tensor.dims) * bits + 7) // 8


def _parameters_of(nodes: list[NodeProto], graph: GraphProto, weights: Mapping[str, TensorProto]) -> list[int]:
    """Returns how many weights each node brings in; a shared weight belongs to its first reader."""
    makers = {name: maker for maker in graph.node for name in maker.output}
    for node in nodes:
        for name in node.output:
            makers.pop(name, None)
    claimed: set[str] = set()
    counts = []
    for node in nodes:
        # What the node reads, straight or through operators on constants alone
        sources: set[str] = set()
        stack = list(node.input)
        while stack:
            name = stack.pop()
            if name not in sources:
                sources.add(name)
                stack.extend(makers[name].input if name in makers else ())
        new = {name for name in sources if name in weights} - claimed
        claimed |= new
        counts.append(sum(math.prod(weights[name].dims) for name in new))
    return counts


def _convolution(weight: int) -> Counter:
    """Every output element sums over the channels of its group and the kernel: the weight without its first axis."""
    return lambda node, shapes: math.prod(shapes[node.output[0]]) * math.prod(shapes[node.input[weight]][1:])


def _gemm(node: NodeProto, shapes: Shapes) -> int:
    transposed = any(attribute.name == "transA" and attribute.i for attribute in node.attribute)
    depth = shapes[node.input[0]][0 if transposed else 1]
    return math.prod(shapes[node.output[0]]) * depth


def _matmul(node: NodeProto, shapes: Shapes) -> int:
    return math.prod(shapes[node.output[0]]) * shapes[node.input[0]][-1]


def _recurrent(node: NodeProto, shapes: Shapes) -> int:
    """Every step of every sequence multiplies by the input and the recurrent weights once."""
    steps, batch = shapes[node.input[0]][:2]
    return steps * batch * (math.prod(shapes[node.input[1]]) + math.prod(shapes[node.input[2]]))


def _einsum(node: NodeProto, shapes: Shapes) -> int:
    """Each operand beyond the first multiplies once for every combination of the labels; axes that dots stand for are
    labels counted from the end."""
    equation = next(a.s.decode() for a in node.attribute if a.name == "equation").replace(" ", "")
    terms, sizes = equation.split("->")[0].split(","), dict[str, int]()
    for term, name in zip(terms, node.input, strict=True):
        before, dots, behind = term.partition("...")
        more = len(shapes[name]) - len(before) - len(behind) if dots else 0
        labels = [*before, *(f".{place}" for place in range(more, 0, -1)), *behind]
        for label, size in zip(labels, shapes[name], strict=True):
            sizes[label] = max(size, sizes.get(label, 1))
    return (len(terms) - 1) * math.prod(sizes.values())


_COUNTERS: dict[str, Counter] = {
    "Conv": _convolution(1),
    "ConvInteger": _convolution(1),
    "QLinearConv": _convolution(3),
    # Every input element is spread over the output channels of its group and the kernel.
    "ConvTranspose": lambda node, shapes: math.prod(shapes[node.input[0]]) * math.prod(shapes[node.input[1]][1:]),
    "Gemm": _gemm,
    "MatMul": _matmul,
    "MatMulInteger": _matmul,
    "QLinearMatMul": _matmul,
    "Einsum": _einsum,
    "LSTM": _recurrent,
    "GRU": _recurrent,
    "RNN": _recurrent,
}


def _peak(nodes: list[NodeProto], model: ModelProto, shapes: Shapes, constants: set[str]) -> int:
    """Returns the most elements alive at once: a tensor lives from its maker to its last reader."""
    # The tensor whose memory each view shares
    storage: dict[str, str] = {}
    for node in nodes:
        if node.op_type in _WITHOUT_MEMORY:
            storage[node.output[0]] = storage.get(node.input[0], node.input[0])
    outputs = {storage.get(value.name, value.name) for value in model.graph.output}
    last = {storage.get(name, name): place for place, node in enumerate(nodes) for name in names_read(node)}
    alive = {value.name: math.prod(shapes[value.name]) for value in inputs_of(model)}
    peak = sum(alive.values())
    for place, node in enumerate(nodes):
        results = [name for name in node.output if name and storage.get(name, name) == name and name not in constants]
        alive.update({name: math.prod(shapes[name]) for name in results})
        peak = max(peak, sum(alive.values()))
        # An output nobody reads has done its work as soon as it is made.
        ended = [name for name in alive if last.get(name, place if name in results else -1) == place]
        for name in ended:
            if name not in outputs:
                del alive[name]
    return peak
