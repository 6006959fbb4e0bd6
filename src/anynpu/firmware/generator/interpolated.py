"""Tables of 513 values of a function of 16 bits, as TFLite makes them: what lies between two of them is on a line."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from anynpu.firmware.generator.fixedpoint import RANGES, clamp, round_away
from anynpu.firmware.generator.graph import Graph, Node, scale_of, zero_of
from anynpu.firmware.generator.layer import Call, Constant, Layer, Tensor, Value, require
from anynpu.tensors import Array

_LOW, _HIGH = RANGES["int16"]


def interpolated(function: Callable[[float], float], scale: Any, out_scale: Any, zero: int = 0) -> Array:
    """Returns the table, corrected for the error half way between its entries; scales are those of its two sides."""
    f = np.float32
    low, high = f(scale) * f(_LOW - zero), f(scale) * f(_HIGH - zero)
    step = (high - low) / f(512)
    inverse = f(65536) / (f(out_scale) * f(_HIGH) - f(out_scale) * f(_LOW))

    def at(x: Any) -> Any:
        return f(function(float(x)))

    def rounded(x: Any) -> Any:
        return f(round_away(float(x)))

    table = []
    for i in range(512):
        value, following = at(low + f(i) * step), at(low + f(i + 1) * step)
        middle = at(low + f(i) * step + step / f(2))
        guess = rounded((following * inverse + rounded(value * inverse)) / f(2))
        bias = rounded((guess - rounded(middle * inverse)) / f(2))
        table.append(clamp(int(rounded(value * inverse) - bias), _LOW, _HIGH))
    table.append(clamp(int(rounded(at(high) * inverse)), _LOW, _HIGH))
    return np.array(table)


def _of_16_bits(graph: Graph, node: Node, function: Callable[[float], float]) -> Layer:
    source, target = graph.input(node, 0), graph.output(node)
    require(source.dtype == target.dtype == "int16", f"has no kernel for {source.dtype}")
    require(zero_of(source) == 0 and zero_of(target) == 0, "takes 16-bit tensors with zero point 0")
    table = interpolated(function, scale_of(source), scale_of(target))
    params: dict[str, Value] = {
        "count": math.prod(source.shape),
        "table": Constant("table", "int16_t", table, 2),
    }
    arguments = (Tensor(node.inputs[0], "int16_t"), Tensor(node.outputs[0], "int16_t"))
    return Layer(node, (Call("between_s16", params, arguments),), over=(node.inputs[0],))


def log(graph: Graph, node: Node) -> Layer:
    """LOG of int16; of what is not above zero it is the lowest number."""
    lowest = float(np.float32(scale_of(graph.output(node))) * np.float32(_LOW))
    return _of_16_bits(graph, node, lambda x: math.log(x) if x > 0 else lowest)


def exp(graph: Graph, node: Node) -> Layer:
    """EXP of int16."""
    # Of larger numbers float32 has none.
    require(scale_of(graph.input(node, 0)) * _HIGH < 80, "has an input scale that is too large")
    return _of_16_bits(graph, node, math.exp)
