"""Hard swish in 16 bits, for which no kernel exists: a product of its argument with what rises from zero to one."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import numpy as np

from anynpu.lowering.graph import Graph, Operator, Tensor, free_name
from anynpu.lowering.options import Add, Mul, Options
from anynpu.quantize.ranges import Range


def swishes_as_products(
    graph: Graph, ranges: Mapping[str, Range], kept: Collection[str]
) -> tuple[Graph, dict[str, Range]]:
    """Returns the graph with HARD_SWISH as x * min(relu(x / 6 + 1/2), 1) and all its ranges; not of the `kept`."""
    tensors, widths, operators = dict(graph.tensors), dict(ranges), list[Operator]()
    for operator in graph.operators:
        source, result = operator.inputs[0], operator.outputs[0]
        limits = ranges.get(source)
        if operator.kind != "HARD_SWISH" or limits is None or result in kept:
            operators.append(operator)
            continue
        most = max(limits.max / 6 + 0.5, 1.0)
        steps: tuple[tuple[str, float, Options | None, Range], ...] = (
            ("MUL", 1 / 6, Mul(), Range(limits.min / 6, limits.max / 6)),
            ("ADD", 0.5, Add("RELU"), Range(0.0, most)),
            ("MINIMUM", 1.0, None, Range(0.0, most)),
        )
        gate = source
        for kind, number, options, width in steps:
            stored, name = free_name(f"{result}/number", tensors), free_name(f"{result}/gate", tensors)
            tensors[stored] = Tensor(stored, (), "float32", np.asarray(number, np.float32))
            tensors[name], widths[name] = Tensor(name, tensors[result].shape), width
            operators.append(Operator(kind, (gate, stored), (name,), options))
            gate = name
        operators.append(Operator("MUL", (source, gate), (result,), Mul()))
    if len(operators) == len(graph.operators):
        return graph, widths
    return Graph(tuple(operators), tensors, graph.inputs, graph.outputs), widths
