"""Functions of one 8-bit value as tables of 256 entries, in operators that every TFLite runtime has.

A run of operators with one that a runtime has no 8-bit kernel for becomes one FUNCTION before it is quantised, and a
table behind: rounded once, however many operators it has. CAST makes a number of the integer, ADD counts it from zero,
GATHER reads the table.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from anynpu.lowering.functions import ALWAYS, ON_MICRO, Function
from anynpu.lowering.graph import Graph, Operator, Tensor, pruned
from anynpu.lowering.net import net_of
from anynpu.lowering.options import Add, Cast, Gather
from anynpu.lowering.ramps import ramped
from anynpu.quantize.functions import leaves, sources
from anynpu.quantize.ranges import Range


def collected(graph: Graph, kinds: frozenset[str], wide: frozenset[str], ranges: Mapping[str, Range]) -> Graph:
    """Returns the graph with each run that has an operator of these kinds, or divides by what can be zero in eight
    bits, as one FUNCTION; wide ones stay."""

    def alone(operator: Operator) -> bool:
        divisor = ranges.get(operator.inputs[1]) if operator.kind == "DIV" else None
        return operator.kind in kinds or (divisor is not None and divisor.min <= 0 <= divisor.max)

    net = net_of(graph)
    origins = sources(net, wide)
    operators: list[Operator] = []
    for operator in graph.operators:
        result = operator.outputs[0]
        source = origins[result] if result in origins and leaves(result, origins, net) else ""
        run, needed, numbers = list[Operator](), {result}, dict[str, float]()
        for each in reversed(graph.operators) if source else ():
            if each.outputs[0] in needed - {source}:
                run.append(each)
                arrays = {name: graph.constant(name) for name in each.inputs}
                numbers |= {name: float(array.reshape(-1)[0]) for name, array in arrays.items() if array is not None}
                needed |= {name for name, array in arrays.items() if array is None}
        if len(run) > 1 and any(map(alone, run)):
            operators.append(Operator("FUNCTION", (source,), (result,), Function(tuple(run[::-1]), numbers, source)))
        else:
            operators.append(operator)
    return pruned(operators, graph.tensors, graph.inputs, graph.outputs)


def tabled(graph: Graph, everywhere: bool = False, as_ramps: bool = False) -> Graph:
    """Returns a graph of integers with tables for the functions that LiteRT lacks, or TFLite-Micro (`everywhere`);
    `as_ramps` writes them for NPUs that read none."""
    kinds = (ON_MICRO if everywhere else ALWAYS) | {"FUNCTION"}
    tensors, operators = dict(graph.tensors), list[Operator]()
    for operator in graph.operators:
        computed = [name for name in operator.inputs if name and tensors[name].data is None]
        dtypes = {tensors[name].dtype for name in (*computed, *operator.outputs)}
        small = all(tensors[name].size == 1 for name in operator.inputs if name and tensors[name].data is not None)
        if operator.kind in kinds and dtypes == {"int8"} and len(computed) == 1 and small:
            operators += _table(operator, computed[0], tensors, as_ramps)
        else:
            operators.append(operator)
    return pruned(operators, tensors, graph.inputs, graph.outputs)


def _function(operator: Operator, source: str, tensors: dict[str, Tensor]) -> Function:
    if isinstance(operator.options, Function):
        return operator.options
    numbers = {
        name: float(form.dequantize(array).reshape(-1)[0]) if form is not None else float(array.reshape(-1)[0])
        for name in operator.inputs
        if (array := tensors[name].data) is not None
        for form in (tensors[name].quantization,)
    }
    return Function((operator,), numbers, source)


def _table(operator: Operator, name: str, tensors: dict[str, Tensor], as_ramps: bool) -> list[Operator]:
    source, result = tensors[name], tensors[operator.outputs[0]]
    before, after = source.quantization, result.quantization
    assert before is not None and after is not None
    values = _function(operator, name, tensors)(before.dequantize(np.arange(-128, 128)).astype(np.float64))
    entries = after.quantize(values, "int8")
    if as_ramps and (ramps := ramped(source, result, entries, tensors)) is not None:
        return ramps
    table = Tensor(f"{result.name}/table", (256,), "int8", entries, after)
    number = Tensor(f"{result.name}/number", source.shape, "int32")
    place = replace(number, name=f"{result.name}/place")
    offset = Tensor(f"{result.name}/offset", (), "int32", np.asarray(128, np.int32))
    tensors |= {tensor.name: tensor for tensor in (table, number, place, offset)}
    return [
        Operator("CAST", (source.name,), (number.name,), Cast("int8", "int32")),
        Operator("ADD", (number.name, offset.name), (place.name,), Add()),
        Operator("GATHER", (table.name, place.name), (result.name,), Gather(0)),
    ]
