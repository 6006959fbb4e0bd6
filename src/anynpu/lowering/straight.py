"""TANH of numbers so small that it gives them back: its built-in scales would round all of them to zero."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from anynpu.lowering.graph import Graph
from anynpu.quantize.ranges import Range

_STRAIGHT = 0.02
"""Up to here tanh(x) is x but for one part in 7,500: 77 dB, far below what 8 bits lose."""


def straightened(graph: Graph, ranges: Mapping[str, Range]) -> Graph:
    """Returns the graph with TANH of next to nothing as a copy, MAXIMUM of the tensor and itself, of any scale."""
    operators = []
    for operator in graph.operators:
        limits = ranges.get(operator.inputs[0]) if operator.kind == "TANH" else None
        if limits is not None and max(abs(limits.min), abs(limits.max)) < _STRAIGHT:
            operator = replace(operator, kind="MAXIMUM", inputs=operator.inputs * 2, options=None)
        operators.append(operator)
    return graph if tuple(operators) == graph.operators else replace(graph, operators=tuple(operators))
