"""Evaluates the parts of a graph that no input reaches: constants, and shapes that are already known."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import TypeVar

import numpy as np
import onnx
from onnx import GraphProto, ModelProto, NodeProto, numpy_helper

from anynpu.foreign import ONNX
from anynpu.graph.branches import written_out

# A folded tensor beyond this size must not be larger than what it was made from: a shape can name terabytes.
MAX_GROWN_ELEMENTS = 1 << 20
_GROWING = {"ConstantOfShape", "Expand", "Tile", "Range", "Resize", "Pad", "OneHot", "EyeLike", "Upsample"}
RANDOM = {"RandomNormal", "RandomUniform", "RandomNormalLike", "RandomUniformLike", "Bernoulli", "Multinomial"}
# Folding these would turn stored integers back into floats and lose the quantisation.
_QUANTISED = {"QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear"}
_CONSTANT_VALUES = {"value", "value_int", "value_ints", "value_float", "value_floats"}

_OF_NODES = ("node", "initializer", "value_info")

_M = TypeVar("_M", ModelProto, NodeProto, onnx.TensorProto, onnx.ValueInfoProto)
Arrays = dict[str, np.ndarray]
Shapes = Mapping[str, tuple[int, ...]]


def initializer_names(graph: GraphProto) -> set[str]:
    """Returns the names of all constants stored with the graph."""
    dense = {tensor.name for tensor in graph.initializer}
    return dense | {tensor.values.name for tensor in graph.sparse_initializer}


def inner_graphs(node: NodeProto) -> Iterator[GraphProto]:
    """Yields the subgraphs of a node: branches and loop bodies."""
    for attribute in node.attribute:
        if attribute.HasField("g"):
            yield attribute.g
        yield from attribute.graphs


def names_read(node: NodeProto) -> set[str]:
    """Returns every name that a node reads, those that its subgraphs take from outside included."""
    names = {name for name in node.input if name}
    for graph in inner_graphs(node):
        inside = {value.name for value in graph.input} | initializer_names(graph)
        read = {value.name for value in graph.output}
        for inner in graph.node:
            read |= names_read(inner)
            inside |= set(inner.output)
        names |= read - inside
    return names


def static_shapes(graph: GraphProto) -> dict[str, tuple[int, ...]]:
    """Returns the shape of every tensor whose dimensions are all known."""
    shapes: dict[str, tuple[int, ...]] = {}
    for value in (*graph.input, *graph.value_info, *graph.output):
        if not value.type.HasField("tensor_type") or not value.type.tensor_type.HasField("shape"):
            continue
        dims = value.type.tensor_type.shape.dim
        if all(dim.HasField("dim_value") and dim.dim_value >= 0 for dim in dims):
            shapes[value.name] = tuple(dim.dim_value for dim in dims)
    shapes.update({tensor.name: tuple(tensor.dims) for tensor in graph.initializer})
    return shapes


def constant_value(node: NodeProto) -> np.ndarray | None:
    """Returns the value of a Constant node, or None where it holds text or a sparse tensor."""
    for attribute in node.attribute:
        if attribute.name not in _CONSTANT_VALUES:
            continue
        value = onnx.helper.get_attribute_value(attribute)
        if attribute.name == "value":
            return numpy_helper.to_array(value)
        return np.array(value, np.float32 if "float" in attribute.name else np.int64)
    return None


def same_nodes(first: ModelProto, second: ModelProto) -> bool:
    """Tells whether two models make the same tensors in the same order: nothing was folded or written out."""
    return [node.output for node in first.graph.node] == [node.output for node in second.graph.node]


def fold_constants(model: ModelProto) -> ModelProto:
    """Returns the model with everything evaluated that depends on constants and known shapes only.

    A branch whose condition is known and a loop of a known count are written out.
    """
    result = copied(model)
    graph = result.graph
    shapes = static_shapes(graph)
    constants: Arrays = {tensor.name: numpy_helper.to_array(tensor) for tensor in graph.initializer}
    stored, outputs = set(constants), {value.name for value in graph.output}
    kept = []
    waiting = deque(graph.node)
    while waiting:
        node = waiting.popleft()
        if (branch := written_out(node, constants, result.opset_import, shapes)) is not None:
            constants.update(branch[1])
            waiting.extendleft(reversed(branch[0]))
            continue
        values = None if outputs & set(node.output) else evaluated(node, constants, shapes, result)
        if values is None:
            kept.append(node)
        else:
            constants.update(zip(node.output, values, strict=False))
    kept = _without_sequences(kept, constants, outputs)
    needed = set().union(outputs, *(names_read(node) for node in kept))
    new = [numpy_helper.from_array(constants[name], name) for name in sorted((set(constants) - stored) & needed)]
    old = [tensor for tensor in graph.initializer if tensor.name in needed]
    nodes, tensors = [copied(node) for node in kept], [copied(tensor) for tensor in old + new]
    names = {tensor.name for tensor in tensors}
    typed = [copied(value) for value in graph.value_info if value.name not in names]
    del graph.node[:], graph.initializer[:], graph.value_info[:]
    graph.node.extend(nodes)
    graph.initializer.extend(tensors)
    graph.value_info.extend(typed)
    return result


def _without_sequences(nodes: list[NodeProto], constants: Arrays, outputs: set[str]) -> list[NodeProto]:
    """Returns the nodes with each known element of a split sequence as a plain Slice, whose shape is known."""
    splits = {node.output[0]: node for node in nodes if node.op_type == "SplitToSequence"}
    result = []
    for node in nodes:
        source = splits.get(node.input[0]) if node.op_type == "SequenceAt" else None
        span = None if source is None else _span(source, constants.get(node.input[1]), constants)
        if source is None or span is None:
            result.append(node)
            continue
        names = [f"{node.output[0]}_{part}" for part in ("start", "end", "axis")]
        constants.update({name: np.array([number], np.int64) for name, number in zip(names, span, strict=True)})
        result.append(onnx.helper.make_node("Slice", [source.input[0], *names], list(node.output), name=node.name))
    read = set().union(outputs, *(names_read(node) for node in result))
    return [node for node in result if node.op_type != "SplitToSequence" or node.output[0] in read]


def _span(split: NodeProto, index: np.ndarray | None, constants: Arrays) -> tuple[int, int, int] | None:
    """Returns where an element of a split sequence starts and ends, and along which axis; None where unknown."""
    settings = {attribute.name: attribute.i for attribute in split.attribute}
    sizes = constants.get(split.input[1]) if len(split.input) > 1 else None
    if sizes is None or index is None or int(index) < 0 or not settings.get("keepdims", 1):
        return None
    place = int(index)
    if sizes.ndim == 0:
        return place * int(sizes), (place + 1) * int(sizes), settings.get("axis", 0)
    if place >= sizes.size:
        return None
    return int(sizes[:place].sum()), int(sizes[: place + 1].sum()), settings.get("axis", 0)


def copied(message: _M) -> _M:
    """Returns a part of a model that can be changed apart from the first."""
    twin = type(message)()
    twin.CopyFrom(message)
    return twin


def copied_without(model: ModelProto, fields: Collection[str]) -> ModelProto:
    """Returns a copy of a model without some fields of its graph, which may be large."""
    result = ModelProto()
    for whole, part, others in ((model, result, ("graph",)), (model.graph, result.graph, fields)):
        for field, value in whole.ListFields():
            if field.name in others:
                continue
            if isinstance(value, str | int):
                setattr(part, field.name, value)
            else:
                getattr(part, field.name).extend(value)
    return result


def with_nodes(model: ModelProto, nodes: Iterable[NodeProto]) -> ModelProto:
    """Returns the model with these nodes in place of its own, without the constants that none of them reads."""
    result = copied_without(model, _OF_NODES)
    graph = result.graph
    graph.node.extend(nodes)
    computed = {name for node in graph.node for name in node.output}
    read = {value.name for value in graph.output}.union(*map(names_read, graph.node))
    graph.initializer.extend(tensor for tensor in model.graph.initializer if tensor.name in read)
    graph.value_info.extend(value for value in model.graph.value_info if value.name in computed)
    return result


def needed_nodes(nodes: Sequence[NodeProto], wanted: Collection[str], known: Collection[str] = ()) -> list[NodeProto]:
    """Returns copies of the nodes that the wanted tensors are made by, in order, from the known tensors on."""
    read, kept = set(wanted), []
    for node in reversed(nodes):
        if read & {*node.output}:
            read |= names_read(node).difference(known)
            kept.append(NodeProto.FromString(node.SerializeToString()))
    return kept[::-1]


def evaluated(node: NodeProto, constants: Arrays, shapes: Shapes, model: ModelProto) -> list[np.ndarray] | None:
    """Returns what a node of constants and known shapes gives, None for any other."""
    if node.domain not in ("", "ai.onnx") or node.op_type in RANDOM | _QUANTISED or any(inner_graphs(node)):
        return None
    if node.op_type == "Constant":
        value = constant_value(node)
        return None if value is None else [value]
    if node.op_type in ("Shape", "Size") and node.input[0] in shapes:
        shape = shapes[node.input[0]]
        if node.op_type == "Size":
            return [np.array(math.prod(shape), np.int64)]
        span = {attribute.name: attribute.i for attribute in node.attribute}
        return [np.array(shape[span.get("start", 0) : span.get("end", len(shape))], np.int64)]
    if not all(name in constants for name in node.input if name):
        return None
    large = (name not in shapes or math.prod(shapes[name]) > MAX_GROWN_ELEMENTS for name in node.output)
    if node.op_type in _GROWING and any(large):
        return None
    if node.op_type == "Identity":
        return [constants[node.input[0]]]
    # A tenth of a small import's memory: only where something is to be computed.
    from onnx.reference import ReferenceEvaluator

    names = list(dict.fromkeys(name for name in node.input if name))
    values = [onnx.helper.make_value_info(name, onnx.TypeProto()) for name in (*names, *filter(None, node.output))]
    graph = onnx.helper.make_graph([node], "fold", values[: len(names)], values[len(names) :])
    single = onnx.helper.make_model(graph, opset_imports=model.opset_import)
    try:
        with np.errstate(all="ignore"):
            results = ReferenceEvaluator(single).run(None, {name: constants[name] for name in names})
    except ONNX:  # an operator the evaluator lacks stays in the graph, which is always right
        return None
    if not all(isinstance(value, np.ndarray | np.generic) for value in results) or not all(node.output):
        return None
    return [np.asarray(value) for value in results]
