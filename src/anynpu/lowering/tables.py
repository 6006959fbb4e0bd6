"""Functions of one 8-bit value as tables of 256 entries, in operators that every TFLite runtime has.

CAST makes a number of the integer, ADD counts it from zero, GATHER reads the table: rounded once for any function.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from anynpu.lowering.graph import Graph, Operator, Tensor, pruned
from anynpu.lowering.options import Add, Cast, Gather, Gelu
from anynpu.tensors import Array

Function = Callable[[Array], Array]

_ERF = np.vectorize(math.erf, otypes=[np.float64])


def _gelu(operator: Operator) -> Function:
    if isinstance(operator.options, Gelu) and operator.options.approximate:
        return lambda x: 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))
    return lambda x: 0.5 * x * (1 + _ERF(x / math.sqrt(2)))


FUNCTIONS: dict[str, Callable[[Operator], Function]] = {
    "SIN": lambda _: np.sin,
    "COS": lambda _: np.cos,
    "FLOOR": lambda _: np.floor,
    "CEIL": lambda _: np.ceil,
    "ROUND": lambda _: np.rint,
    "GELU": _gelu,
    "EXP": lambda _: np.exp,
    "LOG": lambda _: lambda x: np.log(np.maximum(x, 1e-12)),
    "SQRT": lambda _: lambda x: np.sqrt(np.maximum(x, 0.0)),
}
# LiteRT has no integer kernel for these; TFLite-Micro has none for the others either.
ALWAYS = frozenset(("SIN", "COS", "FLOOR", "CEIL", "ROUND"))


def tabled(graph: Graph, everywhere: bool = False) -> Graph:
    """Returns a graph of integers with tables for the functions that LiteRT lacks, or TFLite-Micro (`everywhere`)."""
    kinds = frozenset(FUNCTIONS) if everywhere else ALWAYS
    tensors, operators = dict(graph.tensors), list[Operator]()
    for operator in graph.operators:
        dtypes = {tensors[name].dtype for name in (*operator.inputs, *operator.outputs) if name}
        if operator.kind in kinds and dtypes == {"int8"}:
            operators += _table(operator, tensors)
        else:
            operators.append(operator)
    return pruned(operators, tensors, graph.inputs, graph.outputs)


def _table(operator: Operator, tensors: dict[str, Tensor]) -> list[Operator]:
    source, result = tensors[operator.inputs[0]], tensors[operator.outputs[0]]
    before, after = source.quantization, result.quantization
    assert before is not None and after is not None
    values = FUNCTIONS[operator.kind](operator)(before.dequantize(np.arange(-128, 128)).astype(np.float64))
    table = Tensor(f"{result.name}/table", (256,), "int8", after.quantize(values, "int8"), after)
    number = Tensor(f"{result.name}/number", source.shape, "int32")
    place = replace(number, name=f"{result.name}/place")
    offset = Tensor(f"{result.name}/offset", (), "int32", np.asarray(128, np.int32))
    tensors |= {tensor.name: tensor for tensor in (table, number, place, offset)}
    return [
        Operator("CAST", (source.name,), (number.name,), Cast("int8", "int32")),
        Operator("ADD", (number.name, offset.name), (place.name,), Add()),
        Operator("GATHER", (table.name, place.name), (result.name,), Gather(0)),
    ]
