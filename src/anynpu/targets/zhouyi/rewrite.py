"""Rewrites that make a graph fit cixbuild without changing what it computes.

- `Sub` has no kernel: x - c becomes x + (-c), and x - y becomes x + (-1) * y.
- A mask of -1e9 takes the whole range of eight bits: a mild constant means as much to the Softmax behind it.
- A product with constant weights may become a 1x1 convolution, which is what the NPU runs it as.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from onnx import ModelProto, NodeProto, helper, numpy_helper

from anynpu.artifact import PassEffect
from anynpu.graph import passes
from anynpu.graph.agreement import spread
from anynpu.graph.fold import constant_value, copied, static_shapes
from anynpu.graph.passes import Pass
from anynpu.graph.proof import executed, proof_count
from anynpu.graph.run import random_feeds
from anynpu.graph.shapes import infer
from anynpu.targets.zhouyi.options import ZhouyiOptions
from anynpu.tensors import Array

VERY_NEGATIVE = -1e3
"""No attention score is below this; what is comes from a mask."""
# What a mask passes through on its way to the Softmax; nothing else may follow it.
PASSING = {"Add", "Reshape", "Transpose", "Unsqueeze", "Squeeze", "Expand", "Cast", "Identity", "Slice", "Mul"}


@dataclass
class Graph:
    """A model under change: constants by name, and nodes in order."""

    model: ModelProto

    def __post_init__(self) -> None:
        graph = self.model.graph
        self.constants: dict[str, Array] = {t.name: numpy_helper.to_array(t) for t in graph.initializer}
        for node in graph.node:
            value = constant_value(node) if node.op_type == "Constant" else None
            if value is not None:
                self.constants[node.output[0]] = value
        inferred = infer(self.model).graph
        self.shapes: Mapping[str, tuple[int, ...]] = static_shapes(inferred)
        self.dtypes: dict[str, np.dtype[Any]] = {
            value.name: np.dtype(helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type))
            for value in (*inferred.input, *inferred.value_info, *inferred.output)
            if value.type.tensor_type.elem_type
        }
        self._taken = {*self.constants, *(name for n in graph.node for name in (*n.input, *n.output))}

    def constant(self, like: str, value: Array) -> str:
        """Returns the name of a new constant."""
        name = self.name(like)
        self.constants[name] = value
        self.model.graph.initializer.append(numpy_helper.from_array(np.ascontiguousarray(value), name))
        return name

    def name(self, like: str) -> str:
        """Returns a name that nothing has yet."""
        name, count = like, 1
        while name in self._taken:
            name, count = f"{like}_{count}", count + 1
        self._taken.add(name)
        return name

    def replace(self, change: Callable[[NodeProto], Sequence[NodeProto] | None]) -> int:
        """Puts what `change` returns in the place of each node; None keeps it. Returns how many were changed."""
        nodes, changed = [], 0
        for node in self.model.graph.node:
            new = change(node)
            changed += new is not None
            nodes += [node] if new is None else list(new)
        copies = [NodeProto.FromString(node.SerializeToString()) for node in nodes]
        del self.model.graph.node[:]
        self.model.graph.node.extend(copies)
        return changed

    def readers(self, name: str) -> list[NodeProto]:
        return [node for node in self.model.graph.node if name in node.input]

    def drop_unused(self) -> None:
        """Removes constants that nothing reads any more, and what shape inference said of the old graph."""
        graph = self.model.graph
        used = {name for node in graph.node for name in node.input} | {value.name for value in graph.output}
        kept = [t for t in graph.initializer if t.name in used]
        nodes = [n for n in graph.node if n.op_type != "Constant" or n.output[0] in used]
        for field_, values in ((graph.initializer, kept), (graph.node, nodes)):
            copies = [type(v).FromString(v.SerializeToString()) for v in values]
            del field_[:]
            field_.extend(copies)
        del graph.value_info[:]


def rewritten(
    model: ModelProto, options: ZhouyiOptions, feeds: Sequence[Mapping[str, Array]] = ()
) -> tuple[ModelProto, tuple[str, ...], tuple[PassEffect, ...]]:
    """Returns a graph that computes the same and fits better, and what was done to it, in words and pass by pass.

    They are compared with the original on `feeds`, all of them up to what `proof_count` allows, or on random numbers
    where none are given.
    """
    chosen = spread(len(feeds), proof_count(model, len(feeds)))
    samples = [feeds[at] for at in chosen] or [random_feeds(model, seed) for seed in (0, 1)]
    plan = passes_for(options)
    graph, effects = passes.run(plan, model, executed(samples))
    does = {each.name: each.does for each in plan}
    notes = [
        f"left alone, {each.dropped}: {does[each.name]}" if each.dropped else f"{does[each.name]}: {each.changed}"
        for each in effects
        if each.changed or each.dropped
    ]
    return graph, tuple(notes), effects


def passes_for(options: ZhouyiOptions) -> tuple[Pass[ModelProto], ...]:
    """Returns the rewrites to try, in order."""
    mild = options.mask_value

    def rewrite(name: str, does: str, change: Callable[[Graph], int]) -> Pass[ModelProto]:
        def call(model: ModelProto) -> tuple[ModelProto, int]:
            graph = Graph(copied(model))
            if not (count := change(graph)):
                return model, 0
            graph.drop_unused()
            return infer(graph.model), count

        return Pass(name, does, call)

    masks = (
        rewrite(
            "where-to-add",
            f"Where with a constant mask became Add of 0 and {mild:g}",
            lambda graph: without_where(graph, mild),
        ),
        rewrite("mild-masks", f"constants of attention masks became {mild:g}", lambda graph: mild_masks(graph, mild)),
    )
    convolution = rewrite("matmul-to-conv", "products with constant weights became 1x1 Conv", as_convolutions)
    return (
        rewrite("sub-to-add", "Sub became Add of a negative", without_sub),
        *(masks if mild else ()),
        *((convolution,) if options.matmul == "convolution" else ()),
    )


def without_sub(graph: Graph) -> int:
    """Turns every Sub into an Add and returns their number."""

    def change(node: NodeProto) -> list[NodeProto] | None:
        if node.op_type != "Sub" or node.domain:
            return None
        left, right = node.input
        if right in graph.constants:
            value = graph.constants[right]
            if value.dtype.kind == "u":
                return None
            negative = graph.constant(f"{right}_negative", -value)
            return [helper.make_node("Add", [left, negative], node.output, node.name)]
        dtype = graph.dtypes.get(right, np.dtype(np.float32))
        if dtype.kind == "u":
            return None
        minus = graph.constant("minus_one", np.array(-1, dtype))
        product = graph.name(f"{right}_negative")
        return [
            helper.make_node("Mul", [right, minus], [product], f"{node.name or product}_negative"),
            helper.make_node("Add", [left, product], node.output, node.name),
        ]

    return graph.replace(change)


def without_where(graph: Graph, mild: float) -> int:
    """Turns Where(constant, scores, -inf) before a Softmax into an Add and returns their number."""

    def change(node: NodeProto) -> list[NodeProto] | None:
        if node.op_type != "Where" or node.domain or node.input[0] not in graph.constants:
            return None
        condition, (yes, no) = graph.constants[node.input[0]].astype(bool), node.input[1:]
        kept, masked = (no, condition) if _very_negative(graph, yes) else (yes, ~condition)
        fixed = yes if kept == no else no
        if kept in graph.constants or not _very_negative(graph, fixed) or not _only_softmax(graph, node.output[0]):
            return None
        dtype = graph.constants[fixed].dtype
        mask = graph.constant(f"{node.input[0]}_mask", np.where(masked, mild, 0).astype(dtype))
        return [helper.make_node("Add", [kept, mask], node.output, node.name)]

    return graph.replace(change)


def _very_negative(graph: Graph, name: str) -> bool:
    value = graph.constants.get(name)
    return value is not None and value.dtype.kind == "f" and bool((value <= VERY_NEGATIVE).all())


def mild_masks(graph: Graph, mild: float) -> int:
    """Replaces very negative numbers in constants that lead to a Softmax and nowhere else, and returns their number."""
    changed = 0
    for name, value in list(graph.constants.items()):
        if value.dtype.kind != "f" or not value.size:
            continue
        # A mask has very negative numbers, and otherwise nothing but zeros and ones.
        rest = value[value > VERY_NEGATIVE]
        if value.size == rest.size or not np.isin(rest, (0, 1)).all() or not _only_softmax(graph, name, True):
            continue
        milder = np.where(value <= VERY_NEGATIVE, np.asarray(mild, value.dtype), value)
        new = graph.constant(f"{name}_mild", milder.astype(value.dtype))
        for node in graph.readers(name):
            for index, read in enumerate(node.input):
                if read == name:
                    node.input[index] = new
        changed += 1
    return changed


def _only_softmax(graph: Graph, name: str, by_add: bool = False) -> bool:
    """Whether every way from a tensor ends in a Softmax, with `by_add` through an Add."""
    outputs = {value.name for value in graph.model.graph.output}
    seen, waiting, added = set(), [name], False
    while waiting:
        tensor = waiting.pop()
        readers = graph.readers(tensor)
        if tensor in outputs or not readers:
            return False
        for node in readers:
            if node.op_type == "Softmax":
                continue
            if node.op_type not in PASSING:
                return False
            added |= node.op_type == "Add"
            if node.output[0] not in seen:
                seen.add(node.output[0])
                waiting.append(node.output[0])
    return added or not by_add


def as_convolutions(graph: Graph) -> int:
    """Turns products of rows with constant weights, MatMul and Gemm, into 1x1 Conv and returns their number."""

    def change(node: NodeProto) -> list[NodeProto] | None:
        if node.op_type not in ("MatMul", "Gemm") or node.domain:
            return None
        parameters = _weights(graph, node)
        shape = graph.shapes.get(node.input[0])
        if parameters is None or shape is None or len(shape) not in (2, 3) or 0 in shape:
            return None
        return _convolution(graph, node, *parameters, shape)

    return graph.replace(change)


def _weights(graph: Graph, node: NodeProto) -> tuple[Array, Array | None] | None:
    """Returns the matrix [width, n] and the bias [n] that a product is with, or None where they are not constants."""
    weights = graph.constants.get(node.input[1])
    if weights is None or weights.ndim != 2:
        return None
    if node.op_type == "MatMul":
        return weights, None
    attributes = {a.name: helper.get_attribute_value(a) for a in node.attribute}
    matrix = (weights.T if attributes.get("transB") else weights) * weights.dtype.type(attributes.get("alpha", 1.0))
    if attributes.get("transA"):
        return None
    if len(node.input) < 3 or not node.input[2]:
        return matrix, None
    bias = graph.constants.get(node.input[2])
    if bias is None or bias.size not in (1, matrix.shape[1]) or bias.shape[-1:] not in ((), (1,), (matrix.shape[1],)):
        return None
    scaled = bias.reshape(-1) * bias.dtype.type(attributes.get("beta", 1.0))
    return matrix, np.broadcast_to(scaled, (matrix.shape[1],))


def _convolution(
    graph: Graph, node: NodeProto, weights: Array, bias: Array | None, shape: tuple[int, ...]
) -> list[NodeProto]:
    """Rows become pixels: [.., L, K] -> [B, K, L, 1], a 1x1 convolution, and back."""
    batch, length, width = (1, *shape)[-3:]
    count = weights.shape[1]
    kernel = graph.constant(f"{node.input[1]}_kernel", weights.T.reshape(count, width, 1, 1))
    parameters = [kernel] if bias is None else [kernel, graph.constant(f"{node.output[0]}_bias", bias)]
    place = node.name or node.output[0]
    names = [graph.name(f"{place}_{part}") for part in ("rows", "turned", "pixels", "conv", "flat", "back")]

    def reshape(source: str, dims: Sequence[int], result: str) -> NodeProto:
        shape_name = graph.constant(f"{result}_shape", np.array(dims, np.int64))
        return helper.make_node("Reshape", [source, shape_name], [result], f"{result}_reshape")

    rows, turned, pixels, conv, flat, back = names
    return [
        reshape(node.input[0], (batch, length, width), rows),
        helper.make_node("Transpose", [rows], [turned], f"{turned}_transpose", perm=[0, 2, 1]),
        reshape(turned, (batch, width, length, 1), pixels),
        helper.make_node("Conv", [pixels, *parameters], [conv], node.name, kernel_shape=[1, 1]),
        reshape(conv, (batch, count, length), flat),
        helper.make_node("Transpose", [flat], [back], f"{back}_transpose", perm=[0, 2, 1]),
        reshape(back, (*shape[:-1], count), node.output[0]),
    ]
