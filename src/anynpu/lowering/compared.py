"""Comparisons of real numbers, in integers of one scale.

LiteRT's and TFLite-Micro's kernels bring both sides of 8 bits to steps of 2^-8, whatever their scales are: a factor in
front makes each step of theirs several of those. Vela's compare the integers as they are. TFLite-Micro has no such
kernels of 16 bits: the integers are made numbers of 32 bits, which every runtime compares.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import replace

import numpy as np

from anynpu.lowering.graph import Graph, Operator, Tensor, pruned
from anynpu.lowering.options import Cast, Mul
from anynpu.quantize.ranges import Range

KINDS = frozenset(("EQUAL", "NOT_EQUAL", "LESS", "LESS_EQUAL", "GREATER", "GREATER_EQUAL"))
_SPAN = 8.0
"""What the numbers that are compared span behind the factor: 8 of their steps of 2^-8 for each of 255 integers."""
SHARP = "/sharp"
"""How the factor is named that makes differences large (`reals.py`)."""
ENDLESS = 1e20
"""That factor in floating point."""
_PARTS = 4 * 255
"""Into how many parts what is compared spans; a difference of half a part is one, and less is none."""


def sharpened(graph: Graph, ranges: Mapping[str, Range]) -> Graph:
    """Returns the graph with factors behind differences that tell a part of a step of 8 bits from nothing."""
    tensors, makers = dict(graph.tensors), graph.makers()
    for operator in graph.operators:
        if operator.kind == "MUL" and SHARP in operator.inputs[1]:
            sides = [_limits(name, graph, ranges) for name in makers[operator.inputs[0]].inputs]
            ends = [end for each in sides if each is not None for end in (each.min, each.max)]
            span = max(*ends, 0.0) - min(*ends, 0.0)
            factor = np.full(1, _PARTS / max(span, 1e-20), np.float32)
            tensors[operator.inputs[1]] = replace(tensors[operator.inputs[1]], data=factor)
    return replace(graph, tensors=tensors)


def comparable(graph: Graph, ranges: Mapping[str, Range], wide: Collection[str] = ()) -> tuple[Graph, dict[str, Range]]:
    """Returns the graph with both sides of each comparison of 8 bits in one range that suits the kernels, and its
    ranges; the `wide` ones stay."""
    tensors, widths, operators = dict(graph.tensors), dict(ranges), list[Operator]()
    for operator in graph.operators:
        limits = [_limits(name, graph, ranges) for name in operator.inputs] if operator.kind in KINDS else []
        known = [each for each in limits if each is not None]
        if not known or len(known) < len(limits) or operator.outputs[0] in wide:
            operators.append(operator)
            continue
        low, high = min(0.0, *(each.min for each in known)), max(0.0, *(each.max for each in known))
        factor = 2.0 ** math.floor(math.log2(_SPAN / max(high - low, 1e-30)))
        number, sides = f"{operator.outputs[0]}/factor", []
        tensors[number] = Tensor(number, (), "float32", np.asarray(factor, np.float32))
        for place, name in enumerate(operator.inputs):
            side = f"{operator.outputs[0]}/side{place}"
            data = tensors[name].data
            tensors[side] = replace(tensors[name], name=side, data=None if data is None else np.float32(factor) * data)
            widths[side] = Range(low * factor, high * factor)
            if data is None:
                operators.append(Operator("MUL", (name, number), (side,), Mul()))
            sides.append(side)
        operators.append(replace(operator, inputs=tuple(sides)))
    return replace(graph, operators=tuple(operators), tensors=tensors), widths


def as_whole_numbers(graph: Graph) -> Graph:
    """Returns a graph of integers whose comparisons of 16 bits, at one scale, are those of numbers of 32 bits."""
    tensors, operators = dict(graph.tensors), list[Operator]()
    for operator in graph.operators:
        if operator.kind in KINDS and all(graph.tensors[name].dtype == "int16" for name in operator.inputs):
            sides = []
            for name in operator.inputs:
                side, data = f"{name}/whole", graph.constant(name)
                if side not in tensors and data is None:
                    operators.append(Operator("CAST", (name,), (side,), Cast("int16", "int32")))
                stored = None if data is None else data.astype(np.int32)
                tensors[side] = Tensor(side, graph.tensors[name].shape, "int32", stored)
                sides.append(side)
            operator = replace(operator, inputs=tuple(sides))
        operators.append(operator)
    return pruned(operators, tensors, graph.inputs, graph.outputs)


def _limits(name: str, graph: Graph, ranges: Mapping[str, Range]) -> Range | None:
    """Returns the range of a side; none where it is not a real number."""
    if graph.tensors[name].dtype != "float32":
        return None
    data = graph.constant(name)
    if data is None:
        return ranges.get(name)
    return Range(float(data.min()), float(data.max())) if data.size and np.isfinite(data).all() else None
