"""Divisions by something computed, as products: no kernel for them takes a divisor that rounds to zero."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import cast

from anynpu.lowering.graph import Graph, Operator, Tensor, pruned
from anynpu.lowering.options import Activation, Mul
from anynpu.quantize.ranges import Range


def divided(graph: Graph, ranges: Mapping[str, Range]) -> tuple[Graph, dict[str, Range]]:
    """Returns the graph with a / b as (a * r) * r, where r is 1 / sqrt(b) and b is above zero; and all its ranges.

    The product in the middle is the root of a * (a / b), which bounds it.
    """
    tensors, widths, operators = dict(graph.tensors), dict(ranges), list[Operator]()
    for operator in graph.operators:
        result = operator.outputs[0]
        above, below = operator.inputs if operator.kind == "DIV" else ("", "")
        positive = below in ranges and ranges[below].min >= 0.0 and graph.constant(below) is None
        # What is divided may be a number; a product with a tensor of the result's shape is what every chip has.
        shaped = positive and (tensors[above].shape == tensors[result].shape or tensors[above].size == 1)
        if not shaped or tensors[result].dtype != "float32":
            operators.append(operator)
            continue
        root, middle = f"{result}/root", f"{result}/middle"
        tensors[root] = Tensor(root, tensors[below].shape)
        tensors[middle] = Tensor(middle, tensors[result].shape)
        widths[root] = Range(0.0, 1.0 / math.sqrt(max(ranges[below].min, 1e-30)))
        bound = math.sqrt(_largest(above, graph, ranges) * _largest(result, graph, ranges))
        widths[middle] = Range(-bound, bound)
        activation = cast(Activation, operator.activation)
        operators += [
            Operator("RSQRT", (below,), (root,)),
            Operator("MUL", (above, root), (middle,), Mul()),
            Operator("MUL", (middle, root), (result,), Mul(activation)),
        ]
    return pruned(operators, tensors, graph.inputs, graph.outputs), widths


def _largest(name: str, graph: Graph, ranges: Mapping[str, Range]) -> float:
    data = graph.constant(name)
    if data is not None:
        return float(abs(data).max(initial=0.0))
    return max(abs(ranges[name].min), abs(ranges[name].max)) if name in ranges else 1.0
