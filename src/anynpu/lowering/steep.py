"""Inverse roots of 16 bits in two pieces, where what they are taken of spans more than one table tells apart.

LiteRT and the Ethos-U read a function of 16 bits from a table of 513 values and draw lines between them: 256 for what
is above zero. Below a sixtieth of the largest value an inverse root is far from such lines, and a normalisation whose
rows differ so much loses the small ones. TFLite-Micro computes the root itself and needs none of this.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Set
from dataclasses import replace

import numpy as np

from anynpu.lowering.graph import Graph, Operator, Tensor
from anynpu.lowering.options import Mul
from anynpu.quantize.ranges import Range

_SPAN = 64.0
"""How many times the smallest value the largest may be, for a line between two values of the table to serve."""
_CODES = 32767.0


def in_pieces(
    graph: Graph, ranges: Mapping[str, Range], wide: Set[str]
) -> tuple[Graph, dict[str, Range], frozenset[str]]:
    """Returns the graph with 1 / sqrt(x) as 1 / sqrt(max(x, t)) / sqrt(min(x / t, 1)), its ranges, and what is wide.

    One factor is constant wherever the other is not, so each has a table of its own for its part of the values.
    """
    tensors, widths, operators, wider = dict(graph.tensors), dict(ranges), list[Operator](), set(wide)
    for operator in graph.operators:
        source, result = operator.inputs[0], operator.outputs[0]
        limits = ranges.get(source)
        if operator.kind != "RSQRT" or result not in wide or limits is None or limits.max <= 0:
            operators.append(operator)
            continue
        lowest = max(limits.min, limits.max / _CODES)
        if lowest * _SPAN > limits.max:
            operators.append(operator)
            continue
        border = limits.max / _SPAN
        names = [f"{result}/{part}" for part in ("high", "high_root", "scaled", "low", "low_root")]
        high, high_root, scaled, low, low_root = names
        for name in names:
            tensors[name] = replace(tensors[source], name=name)
        wider |= {*names}
        numbers = {f"{result}/border": border, f"{result}/factor": 1 / border, f"{result}/one": 1.0}
        for name, number in numbers.items():
            tensors[name] = Tensor(name, (), "float32", np.asarray(number, np.float32))
        widths[high], widths[high_root] = Range(border, limits.max), Range(0.0, 1 / math.sqrt(border))
        widths[scaled] = widths[low] = Range(0.0, 1.0)
        widths[low_root] = Range(0.0, math.sqrt(border / lowest))
        most = ranges[result].max if result in ranges else math.inf
        widths[result] = Range(0.0, min(most, 1 / math.sqrt(lowest)))
        border_name, factor, one = numbers
        operators += [
            Operator("MAXIMUM", (source, border_name), (high,)),
            Operator("RSQRT", (high,), (high_root,)),
            Operator("MUL", (source, factor), (scaled,), Mul()),
            Operator("MINIMUM", (scaled, one), (low,)),
            Operator("RSQRT", (low,), (low_root,)),
            Operator("MUL", (high_root, low_root), (result,), Mul()),
        ]
    return replace(graph, operators=tuple(operators), tensors=tensors), widths, frozenset(wider)
