"""Finds functions of one value in a float graph: runs of operators that compute, element by element, from one tensor.

A run with an operator that a runtime has no 8-bit kernel for becomes one FUNCTION, which `tables.py` writes as a table
of 256 entries: rounded once, however many operators it has.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from anynpu.graph.scalars import gelu, gelu_tanh, sigmoid
from anynpu.lowering.graph import Graph, Operator, Tensor, pruned
from anynpu.lowering.options import Gelu, LeakyRelu, Options
from anynpu.tensors import Array

Kernel = Callable[..., Array]


def _gelu(operator: Operator, x: Array) -> Array:
    if isinstance(operator.options, Gelu) and operator.options.approximate:
        return gelu_tanh(x)
    return gelu(x)


def _leaky(operator: Operator, x: Array) -> Array:
    alpha = operator.options.alpha if isinstance(operator.options, LeakyRelu) else 0.0
    return np.where(x > 0, x, alpha * x)


def _plain(function: Kernel) -> Kernel:
    return lambda _, *operands: function(*operands)


KERNELS: dict[str, Kernel] = {
    "ADD": _plain(np.add),
    "SUB": _plain(np.subtract),
    "MUL": _plain(np.multiply),
    "DIV": _plain(np.divide),
    "POW": _plain(np.power),
    "MAXIMUM": _plain(np.maximum),
    "MINIMUM": _plain(np.minimum),
    "RELU": _plain(lambda x: np.maximum(x, 0.0)),
    "RELU6": _plain(lambda x: np.clip(x, 0.0, 6.0)),
    "LEAKY_RELU": _leaky,
    "LOGISTIC": _plain(sigmoid),
    "TANH": _plain(np.tanh),
    "HARD_SWISH": _plain(lambda x: x * np.clip(x / 6 + 0.5, 0.0, 1.0)),
    "GELU": _gelu,
    "EXP": _plain(np.exp),
    "LOG": _plain(lambda x: np.log(np.maximum(x, 1e-12))),
    "SQRT": _plain(lambda x: np.sqrt(np.maximum(x, 0.0))),
    "RSQRT": _plain(lambda x: 1 / np.sqrt(np.maximum(x, 1e-24))),
    "ABS": _plain(np.abs),
    "SIN": _plain(np.sin),
    "COS": _plain(np.cos),
    "FLOOR": _plain(np.floor),
    "CEIL": _plain(np.ceil),
    "ROUND": _plain(np.rint),
    "SIGN": _plain(np.sign),
    "FLOOR_MOD": _plain(np.mod),
}
_FUSED: dict[str, Callable[[Array], Array]] = {
    "NONE": lambda x: x,
    "RELU": lambda x: np.maximum(x, 0.0),
    "RELU6": lambda x: np.clip(x, 0.0, 6.0),
    "RELU_N1_TO_1": lambda x: np.clip(x, -1.0, 1.0),
}
# LiteRT has no 8-bit kernel for the first; TFLite-Micro has none for the others either.
ALWAYS = frozenset(("SIN", "COS", "FLOOR", "CEIL", "ROUND", "SIGN", "POW", "FLOOR_MOD"))
ON_MICRO = ALWAYS | {"EXP", "LOG", "SQRT", "GELU", "DIV"}


@dataclass(frozen=True)
class Function(Options):
    """What a FUNCTION computes: operators in their order, the numbers they read, and the tensor they start from."""

    operators: tuple[Operator, ...]
    numbers: Mapping[str, float]
    source: str

    def __call__(self, x: Array) -> Array:
        """Returns the function's values."""
        values: dict[str, Array] = {name: np.asarray(number) for name, number in self.numbers.items()}
        values[self.source] = np.asarray(x, np.float64)
        result = values[self.source]
        with np.errstate(all="ignore"):
            for operator in self.operators:
                result = KERNELS[operator.kind](operator, *(values[name] for name in operator.inputs))
                result = values[operator.outputs[0]] = _FUSED[operator.activation](result)
        return np.asarray(np.nan_to_num(result, nan=0.0, posinf=1e30, neginf=-1e30))


def collected(graph: Graph, kinds: frozenset[str], wide: frozenset[str]) -> Graph:
    """Returns the graph with each run that has an operator of these kinds as one FUNCTION; wide ones stay."""
    sources = sources_of(graph, wide)
    makers, readers = graph.makers(), graph.readers()
    operators: list[Operator] = []
    for operator in graph.operators:
        result = operator.outputs[0]
        inside = [user for user in readers.get(result, ()) if sources.get(user.outputs[0]) == sources.get(result)]
        leaves = result in graph.outputs or len(inside) < len(readers.get(result, ()))
        if sources.get(result, result) != result and leaves:
            run = function_of(result, sources[result], makers, graph)
            if len(run.operators) > 1 and any(each.kind in kinds for each in run.operators):
                operators.append(Operator("FUNCTION", (run.source,), (result,), run))
                continue
        operators.append(operator)
    return pruned(operators, graph.tensors, graph.inputs, graph.outputs)


def sources_of(graph: Graph, wide: frozenset[str]) -> dict[str, str]:
    """Returns for each tensor the one that it is a function of, element by element: itself, or another."""
    sources: dict[str, str] = {}
    for operator in graph.operators:
        result = operator.outputs[0]
        sources[result] = result
        if operator.kind not in KERNELS or result in wide or operator.activation not in _FUSED:
            continue
        if graph.tensors[result].dtype != "float32":
            continue
        tensors = [graph.tensors[name] for name in operator.inputs]
        origins = {sources.get(each.name, each.name) for each in tensors if each.data is None}
        small = all(each.size == 1 for each in tensors if each.data is not None)
        if len(origins) == 1 and small:
            (origin,) = origins
            if _fits(graph.tensors[origin], graph.tensors[result]):
                sources[result] = origin
    return sources


def _fits(source: Tensor, result: Tensor) -> bool:
    return source.shape == result.shape and source.dtype == result.dtype


def function_of(result: str, source: str, makers: Mapping[str, Operator], graph: Graph) -> Function:
    """Returns the operators between two tensors."""
    needed, waiting = dict[str, Operator](), [result]
    numbers: dict[str, float] = {}
    while waiting:
        name = waiting.pop()
        array = graph.constant(name)
        if array is not None:
            numbers[name] = float(array.reshape(-1)[0])
        elif name != source and name not in needed:
            needed[name] = makers[name]
            waiting += makers[name].inputs
    ordered = tuple(operator for operator in graph.operators if operator.outputs[0] in needed)
    return Function(ordered, numbers, source)
