"""Recognises functions that exporters write out with many nodes, so that each is lowered and rounded as one.

A function is known by what it computes, not by how it is written: wherever nodes compute element by element from one
tensor and stored numbers, the function of that tensor is evaluated and compared with k * f(s * x).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import onnx
from onnx import helper, numpy_helper

from anynpu.graph.scalars import gelu, gelu_tanh, reads_numbers, value_of
from anynpu.tensors import Array

# The nodes that a function worth recognising is written with, and how many others may stand before and behind them.
_SEEDS = ("Erf", "Tanh", "Clip", "HardSigmoid", "Min", "Relu")
_BEFORE, _MOST_NODES = 12, 24
_GRID = np.concatenate([np.linspace(-12, 12, 193), np.linspace(-2, 2, 65)])
# Exporters store numbers with seven digits, some with fewer.
_CLOSE = 2e-6
# From here on softplus is x: they differ by 3e-7.
_STRAIGHT = 15.0
# Beyond this each of the functions is a rectifier on the grid.
_SCALES = (0.05, 20.0)


@dataclass(frozen=True)
class _Shape:
    """A function that has one operator: its node, and the scale of its argument for a slope far out and one at zero."""

    op: str
    function: Callable[[Array], Array]
    scale: Callable[[float], float]
    attributes: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class _Match:
    """Says that one tensor is factor * f(scale * another)."""

    root: str
    result: str
    shape: _Shape
    factor: float
    scale: float


# f(x) / x - 1/2 of each is a step: s is found from where the ratio g(x) / (slope * x) - 1/2 rises.
_SHAPES = (
    _Shape("Gelu", gelu, lambda rise: rise * math.sqrt(2 * math.pi)),
    _Shape("Gelu", gelu_tanh, lambda rise: rise * math.sqrt(2 * math.pi), (("approximate", "tanh"),)),
    _Shape("HardSwish", lambda x: np.asarray(x * np.clip(x / 6 + 0.5, 0.0, 1.0)), lambda rise: rise * 6),
)


def _is_softplus(node: onnx.NodeProto, makers: Mapping[str, onnx.NodeProto], numbers: Mapping[str, Array]) -> bool:
    """Tells whether a choice is a softplus that is left out where it is the same as x, as PyTorch's exporter writes."""
    compare, bent = makers.get(node.input[0]), makers.get(node.input[2])
    if compare is None or bent is None or (compare.op_type, bent.op_type) != ("Greater", "Softplus"):
        return False
    same = compare.input[0] == bent.input[0] == node.input[1]
    return same and float(numbers.get(compare.input[1], np.zeros(()))) >= _STRAIGHT


def recognised(model: onnx.ModelProto) -> onnx.ModelProto:
    """Returns the model with written-out GELU, hard swish and softplus as one node each, up to constant factors."""
    graph = model.graph
    numbers = {item.name: numpy_helper.to_array(item).astype(np.float64).reshape(()) for item in graph.initializer
               if math.prod(item.dims) == 1 and item.data_type in (1, 10, 11)}  # fmt: skip
    makers = {name: node for node in graph.node for name in node.output}
    bent = [node for node in graph.node if node.op_type == "Where" and _is_softplus(node, makers, numbers)]
    for node in bent:
        node.op_type = "Softplus"
        del node.input[2], node.input[0]
    readers: dict[str, list[onnx.NodeProto]] = {}
    for node in graph.node:
        for name in node.input:
            readers.setdefault(name, []).append(node)
    infos = {value.name: value for value in (*graph.value_info, *graph.input, *graph.output)}
    replaced: dict[str, list[onnx.NodeProto]] = {}
    for node in list(graph.node):
        match = _match(node, makers, readers, numbers) if node.op_type in _SEEDS else None
        if match is None or match.result in replaced or not {match.root, match.result} <= infos.keys():
            continue
        if infos[match.root].type == infos[match.result].type:
            replaced[match.result] = _written(match, graph, infos[match.result], makers[match.result].name)
    if not replaced and not bent:
        return model
    nodes = [
        onnx.NodeProto.FromString(each.SerializeToString())
        for node in graph.node
        for each in (replaced.get(node.output[0], [node]) if node.output else [node])
    ]
    del graph.node[:]
    results = {value.name for value in graph.output}
    kept = []
    for node in reversed(nodes):
        if results & {*node.output} or not node.output:
            results |= {*node.input}
            kept.append(node)
    graph.node.extend(kept[::-1])
    return model


def _match(
    seed: onnx.NodeProto,
    makers: dict[str, onnx.NodeProto],
    readers: dict[str, list[onnx.NodeProto]],
    numbers: dict[str, Array],
) -> _Match | None:
    """Returns the known function that a node is part of, with as few factors around it as there are."""
    matches: list[_Match] = []
    for root in _roots(seed, makers, numbers):
        values: dict[str, Array] = {**numbers, root: _GRID}
        region = list(_behind(root, readers, values))
        for node in reversed(region) if seed.output[0] in values else ():
            fit = _fit(values[node.output[0]])
            if fit is not None:
                matches.append(_Match(root, node.output[0], *fit))
                break
    return min(matches, key=lambda match: (not _is_one(match.scale)) + (not _is_one(match.factor)), default=None)


def _is_one(number: float) -> bool:
    return math.isclose(number, 1.0, rel_tol=_CLOSE)


def _roots(seed: onnx.NodeProto, makers: dict[str, onnx.NodeProto], numbers: dict[str, Array]) -> Iterator[str]:
    """Gives the tensors that the node's operand may be a function of, from the nearest on."""
    order = {name: place for place, name in enumerate(makers)}

    def operands(node: onnx.NodeProto) -> set[str]:
        return {name for name in node.input if name and name not in numbers}

    names = operands(seed)
    for _ in range(_BEFORE):
        if len(names) == 1:
            yield from names
        # What all of them are functions of lies before the last that was computed.
        last = max(names, key=lambda name: order.get(name, -1), default="")
        maker = makers.get(last)
        if maker is None or not reads_numbers(maker):
            return
        names = (names - {last}) | operands(maker)


def _behind(root: str, readers: dict[str, list[onnx.NodeProto]], values: dict[str, Array]) -> Iterator[onnx.NodeProto]:
    """Gives the nodes that compute from the root and stored numbers alone, and adds what they give to the values."""
    waiting, count = [root], 0
    while waiting and count < _MOST_NODES:
        name = waiting.pop(0)
        for node in readers.get(name, ()):
            ready = reads_numbers(node) and all(not each or each in values for each in node.input)
            if not ready or node.output[0] in values:
                continue
            values[node.output[0]] = np.broadcast_to(value_of(node, values), _GRID.shape)
            waiting.append(node.output[0])
            count += 1
            yield node


def _fit(values: Array) -> tuple[_Shape, float, float] | None:
    """Returns a function f with k and s where the values are k * f(s * x) on the grid."""
    if not np.isfinite(values).all():
        return None
    # A sum of steps: g(x) - g(-x) = slope * x for each of these functions, at any scale.
    slope = float(values[192] - values[0]) / 12
    step = 1 / 16
    at = int(np.argmin(np.abs(_GRID[193:] - step))) + 193
    if not slope:
        return None
    rise = (float(values[at]) / (slope * step) - 0.5) / step
    for shape in _SHAPES:
        for scale in (1.0, *_refined(shape, rise, values, slope)):
            wanted = slope / scale * shape.function(scale * _GRID)
            if np.abs(wanted - values).max() <= _CLOSE * np.abs(values).max():
                return shape, slope / scale, scale
    return None


def _refined(shape: _Shape, rise: float, values: Array, slope: float) -> Iterator[float]:
    """Gives the scale of the argument that a rise near zero means, made exact by a few secant steps."""
    scale = shape.scale(rise)
    if not _SCALES[0] < abs(scale) < _SCALES[1]:
        return
    where = np.abs(_GRID - 1 / scale).argmin()

    def miss(s: float) -> float:
        return float(slope / s * shape.function(s * _GRID[where : where + 1])[0] - values[where])

    before, after = scale * 1.01, scale
    for _ in range(20):
        low, high = miss(before), miss(after)
        if high == low or abs(high) < 1e-13 * max(1.0, abs(slope)):
            break
        before, after = after, after - high * (after - before) / (high - low)
    if _SCALES[0] < abs(after) < _SCALES[1]:
        yield float(np.float32(after))
        yield after


def _written(match: _Match, graph: onnx.GraphProto, like: onnx.ValueInfoProto, name: str) -> list[onnx.NodeProto]:
    """Returns the function as nodes: Mul by the scale and by the factor only where these are not one."""
    nodes: list[onnx.NodeProto] = []

    def scaled(source: str, by: float, output: str) -> str:
        if _is_one(by):
            return source
        graph.initializer.append(numpy_helper.from_array(np.asarray(by, np.float32), f"{output}/factor"))
        nodes.append(helper.make_node("Mul", [source, f"{output}/factor"], [output], name=output))
        return output

    def typed(output: str) -> str:
        value = graph.value_info.add()
        value.CopyFrom(like)
        value.name = output
        return output

    source = scaled(match.root, match.scale, typed(f"{match.result}/argument"))
    function = typed(f"{match.result}/function")
    nodes.append(helper.make_node(match.shape.op, [source], [function], name=name, **dict(match.shape.attributes)))
    if scaled(function, match.factor, match.result) == function:
        nodes[-1].output[0] = match.result
    return nodes
