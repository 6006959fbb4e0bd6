"""Keeps layers apart that Vela 5.2.0 takes for one: it stores the weights and biases of layers with the same weights
and factors once, with the biases of the first. Each further one gets the next scale that floating point has.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from anynpu.lowering.graph import Graph, Operator, Tensor, free_name
from anynpu.lowering.integers import WEIGHT_AXES, data_input
from anynpu.tensors import Array

_DIGITS = 26
"""To how many binary digits factors are compared: a scale's next number differs within them."""


def distinct(graph: Graph) -> Graph:
    """Returns a graph of integers in which no layer has the weights and factors of one with other biases."""
    tensors, operators = dict(graph.tensors), list[Operator]()
    biases: dict[tuple[bytes, ...], Array] = {}
    for operator in graph.operators:
        bias = tensors.get(operator.inputs[-1]) if operator.kind in WEIGHT_AXES else None
        weights = tensors[operator.inputs[1]] if bias is not None else None
        if bias is None or weights is None or bias.data is None or weights.data is None or not weights.quantization:
            operators.append(operator)
            continue
        source, result = tensors[data_input(operator)].quantization, tensors[operator.outputs[0]].quantization
        assert source is not None and result is not None
        kept, ratio = weights, source.scale[0] / result.scale[0]
        while not np.array_equal(biases.setdefault(_key(kept, ratio), bias.data), bias.data):
            first, *others = (form := kept.quantization or weights.quantization).scale
            above = float(np.nextafter(np.float32(first), np.float32(np.inf)))
            kept = replace(kept, quantization=replace(form, scale=(above, *others)))
        if kept is not weights:
            name = free_name(f"{weights.name}/next", tensors)
            tensors[name] = replace(kept, name=name)
            operator = replace(operator, inputs=(operator.inputs[0], name, *operator.inputs[2:]))
        operators.append(operator)
    return replace(graph, operators=tuple(operators), tensors=tensors)


def _key(weights: Tensor, ratio: float) -> tuple[bytes, ...]:
    assert weights.data is not None and weights.quantization is not None
    digits, exponent = np.frexp(np.asarray(weights.quantization.scale) * ratio)
    factors = np.rint(np.ldexp(digits, _DIGITS)), exponent
    return repr(weights.shape).encode(), weights.data.tobytes(), *(each.tobytes() for each in factors)
