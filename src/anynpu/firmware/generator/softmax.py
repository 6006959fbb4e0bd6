"""SOFTMAX: the exponentials are a table, since only differences to the maximum matter."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from anynpu.firmware.generator.fixedpoint import clamp, exp_negative, high_product, quantize_multiplier, round_away
from anynpu.firmware.generator.graph import Graph, Node, scale_of, zero_of
from anynpu.firmware.generator.layer import Call, Constant, Layer, Tensor, Value, require
from anynpu.firmware.generator.types import C_TYPES, SUFFIX
from anynpu.tensors import Array

INTEGER_BITS = 5


def exponentials(beta: float, scale: float) -> list[int]:
    """Returns exp(-d * scale * beta) in Q0.31 for d from 0; the table ends where the kernel's sum leaves values out."""
    real = min(beta * scale * (1 << (31 - INTEGER_BITS)), (1 << 31) - 1.0)
    require(real > 1, "has an input scale that is too small")  # TFLite-Micro and LiteRT abort
    multiplier, shift = quantize_multiplier(real)
    radius = math.floor(((1 << INTEGER_BITS) - 1) * (1 << (31 - INTEGER_BITS)) / (1 << shift))
    table = []
    for difference in range(min(radius, 255) + 1):
        scaled = high_product(-difference << shift, multiplier)
        table.append(exp_negative(scaled, INTEGER_BITS))
    return table


def softmax(graph: Graph, node: Node) -> Layer:
    """SOFTMAX."""
    image, out = graph.input(node, 0), graph.output(node)
    require(image.dtype == out.dtype and image.dtype in ("int8", "int16"), f"turns {image.dtype} into {out.dtype}")
    if image.dtype == "int16":
        require(zero_of(image) == 0 and zero_of(out) == 0, "takes 16-bit tensors with zero point 0")
        require(abs(scale_of(out) * 32768 - 1) <= 0.001, "takes a 16-bit output of scale 1/32768")
        multiplier, shift = quantize_multiplier(scale_of(image) * node.options.beta / (10.0 / 65535.0))
        params: dict[str, Value] = {
            "exponentials": Constant("exponentials", "int16_t", interpolated(math.exp, 10.0, 32767), 2),
            "reciprocals": Constant("reciprocals", "int16_t", interpolated(lambda x: 1 / (1 + x), 1.0, -32768), 2),
            "multiplier": multiplier,
            "shift": shift,
        }
    else:
        require(out.scale == (1 / 256,) and zero_of(out) == -128, "takes an output of scale 1/256 and zero point -128")
        table = exponentials(node.options.beta, scale_of(image))
        params = {
            "exponentials": Constant("exponentials", "int32_t", np.array(table), 4),
            "entries": len(table),
        }
    params |= {"rows": math.prod(image.shape) // image.shape[-1], "length": image.shape[-1]}
    ctype = C_TYPES[image.dtype]
    arguments = (Tensor(node.inputs[0], ctype), Tensor(node.outputs[0], ctype))
    return Layer(node, (Call(f"softmax_{SUFFIX[image.dtype]}", params, arguments),), over=(node.inputs[0],))


def interpolated(function: Callable[[float], float], reach: float, zero: int) -> Array:
    """Returns the table of 513 that is interpolated between its entries, corrected for the error half way."""
    f = np.float32
    scale, out_scale = f(reach) / f(65535), f(2.0) / f(65535)
    low, high = scale * f(-32768 - zero), scale * f(32767 - zero)
    step = (high - low) / f(512)
    inverse = f(65536) / (out_scale * f(32767) - out_scale * f(-32768))

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
        table.append(clamp(int(rounded(value * inverse) - bias), -32768, 32767))
    table.append(clamp(int(rounded(at(high) * inverse)), -32768, 32767))
    return np.array(table)
