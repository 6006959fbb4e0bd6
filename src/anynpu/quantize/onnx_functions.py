"""Functions of one tensor in an ONNX graph: nodes that compute element by element from it and from stored numbers.

SiLU, GELU, hard swish or Mish are such functions, however an exporter writes them. Eight-bit hardware computes any of
them in one step, from integers to integers, so nothing is rounded between their nodes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import onnx
from onnx import numpy_helper

from anynpu.graph.scalars import reads_numbers, value_of
from anynpu.quantize.followers import Follower, Gate, Pointwise, Rows
from anynpu.tensors import Array

MOVES = ("Reshape", "Transpose", "Squeeze", "Unsqueeze", "Flatten", "Identity")
"""Operators that change where values stand, and none of the values."""


@dataclass(frozen=True)
class Wiring:
    """Who makes and who reads each tensor of a graph, and which stored tensors hold one number."""

    makers: Mapping[str, onnx.NodeProto]
    readers: Mapping[str, list[onnx.NodeProto]]
    outputs: frozenset[str]
    numbers: Mapping[str, Array]
    stored: frozenset[str]

    @staticmethod
    def of(graph: onnx.GraphProto) -> Wiring:
        readers: dict[str, list[onnx.NodeProto]] = {}
        for node in graph.node:
            for name in dict.fromkeys(node.input):
                readers.setdefault(name, []).append(node)
        numbers = {
            item.name: numpy_helper.to_array(item).astype(np.float64).reshape(())
            for item in graph.initializer
            if math.prod(item.dims) == 1 and item.data_type in (onnx.TensorProto.FLOAT, onnx.TensorProto.DOUBLE)
        }
        makers = {name: node for node in graph.node for name in node.output}
        outputs = frozenset(value.name for value in graph.output)
        return Wiring(makers, readers, outputs, numbers, frozenset(item.name for item in graph.initializer))

    def alone(self, name: str) -> bool:
        """Tells whether one node reads a tensor, and nobody else."""
        return len(self.readers.get(name, ())) == 1 and name not in self.outputs


def sources(graph: onnx.GraphProto, wiring: Wiring) -> dict[str, str]:
    """Returns for each tensor that is a function of another, element by element, that other one."""
    found: dict[str, str] = {}
    for node in graph.node:
        if not reads_numbers(node) or node.output[0] in wiring.stored:
            continue
        names = {name for name in node.input if name and name not in wiring.numbers}
        origins = {found.get(name, name) for name in names}
        if len(origins) == 1 and not origins & wiring.stored:
            found[node.output[0]] = origins.pop()
    return found


def functions(graph: onnx.GraphProto, wiring: Wiring) -> dict[str, tuple[list[str], str]]:
    """Returns the functions with one result: by the tensor that they read, all that they compute, and their result."""
    origins = sources(graph, wiring)
    members: dict[str, list[str]] = {}
    for name, origin in origins.items():
        members.setdefault(origin, []).append(name)
    ends = {origin: [name for name in names if _leaves(name, origins, wiring)] for origin, names in members.items()}
    return {origin: (names, ends[origin][0]) for origin, names in members.items() if len(ends[origin]) == 1}


def _leaves(name: str, origins: Mapping[str, str], wiring: Wiring) -> bool:
    readers = wiring.readers.get(name, ())
    return (
        name in wiring.outputs
        or not readers
        or any(origins.get(node.output[0]) != origins.get(name, name) for node in readers)
    )


def followers(graph: onnx.GraphProto) -> dict[str, Follower]:
    """Returns the function behind each tensor that nothing else reads."""
    wiring = Wiring.of(graph)
    found: dict[str, Follower] = {}
    for source, (members, end) in functions(graph, wiring).items():
        if source not in wiring.outputs and all(node.output[0] in members for node in wiring.readers[source]):
            nodes = tuple(wiring.makers[name] for name in members)
            found[source] = Pointwise(_Evaluated(nodes, source, end, wiring.numbers))
    for node in graph.node:
        if node.op_type == "Softmax" and wiring.alone(node.input[0]):
            axis = next((item.i for item in node.attribute if item.name == "axis"), -1)
            found[node.input[0]] = Rows(axis)
        if node.op_type == "Sigmoid" and wiring.alone(node.output[0]):
            found |= _gate(node, wiring, graph)
    return found | _before_moves(found, wiring)


def _gate(sigmoid: onnx.NodeProto, wiring: Wiring, graph: onnx.GraphProto) -> dict[str, Follower]:
    """Returns the gate behind a tensor that meets its own sigmoid, with a stored factor for each channel between."""
    level, product = wiring.makers.get(sigmoid.input[0]), wiring.readers[sigmoid.output[0]][0]
    if level is None or level.op_type != "Mul" or product.op_type != "Mul" or level.input[1] not in wiring.stored:
        return {}
    source = level.input[0]
    if {*product.input} != {source, sigmoid.output[0]} or len(wiring.readers[source]) != 2 or source in wiring.outputs:
        return {}
    inverse = next(numpy_helper.to_array(item) for item in graph.initializer if item.name == level.input[1])
    return {source: Gate(1 / float(inverse.min()))} if inverse.size > 1 and inverse.min() > 0 else {}


def _before_moves(found: Mapping[str, Follower], wiring: Wiring) -> dict[str, Follower]:
    """Returns the same for what is only moved on the way to a function."""
    moved: dict[str, Follower] = {}
    for name, follower in found.items():
        maker = wiring.makers.get(name)
        while maker is not None and maker.op_type in MOVES and wiring.alone(maker.input[0]):
            if isinstance(follower, Rows | Gate):
                break  # rows and channels of another shape
            moved[maker.input[0]] = follower
            maker = wiring.makers.get(maker.input[0])
    return moved


@dataclass(frozen=True)
class _Evaluated:
    """A function of one tensor, given by its nodes."""

    nodes: tuple[onnx.NodeProto, ...]
    source: str
    end: str
    numbers: Mapping[str, Array]

    def __call__(self, x: Array) -> Array:
        values: dict[str, Array] = {**self.numbers, self.source: np.asarray(x, np.float64)}
        for node in self.nodes:
            values[node.output[0]] = value_of(node, values)
        return np.broadcast_to(values[self.end], np.shape(x))
