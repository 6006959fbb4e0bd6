"""Rectifiers with a slope for each channel in 16 bits, as operators that have kernels for them."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import numpy as np

from anynpu.lowering.graph import Graph, Operator, Tensor, pruned
from anynpu.lowering.options import Add, Mul
from anynpu.quantize.ranges import Range


def without_slopes(
    graph: Graph, ranges: Mapping[str, Range], wide: Collection[str]
) -> tuple[Graph, dict[str, Range], frozenset[str]]:
    """Returns the graph without the PRELUs that are to compute in 16 bits, all its ranges, and what is wide too: the
    larger of a value and its product with the slope, or the sum of what is above zero and that product below it."""
    tensors, widths, operators, more = dict(graph.tensors), dict(ranges), list[Operator](), set[str]()

    def step(kind: str, inputs: tuple[str, ...], name: str, limits: Range, options: Mul | Add | None = None) -> str:
        tensors[name] = Tensor(name, tensors[inputs[0]].shape)
        widths[name] = limits
        more.add(name)
        operators.append(Operator(kind, inputs, (name,), options))
        return name

    for operator in graph.operators:
        result, source = operator.outputs[0], operator.inputs[0]
        slopes = graph.constant(operator.inputs[1]) if operator.kind == "PRELU" else None
        if slopes is None or result not in wide or source not in ranges:
            operators.append(operator)
            continue
        low, high = min(ranges[source].min, 0.0), max(ranges[source].max, 0.0)
        if slopes.min() >= 0.0 and slopes.max() <= 1.0:
            slanted = step("MUL", (source, operator.inputs[1]), f"{result}/slanted", Range(low, high), Mul())
            operators.append(Operator("MAXIMUM", (source, slanted), (result,)))
            continue
        zero = f"{result}/zero"
        tensors[zero] = Tensor(zero, (1,), "float32", np.zeros(1, np.float32))
        above = step("RELU", (source,), f"{result}/above", Range(0.0, high))
        below = step("MINIMUM", (source, zero), f"{result}/below", Range(low, 0.0))
        ends = low * float(slopes.min()), low * float(slopes.max())
        slanted = step(
            "MUL", (below, operator.inputs[1]), f"{result}/slanted", Range(min(*ends, 0), max(*ends, 0)), Mul()
        )
        operators.append(Operator("ADD", (above, slanted), (result,), Add()))
    return pruned(operators, tensors, graph.inputs, graph.outputs), widths, frozenset(more)
