"""SOFTMAX: the exponentials are a table, since only differences to the maximum matter."""

from __future__ import annotations

import math

import numpy as np

from anynpu.firmware.generator.fixedpoint import exp_negative, high_product, quantize_multiplier
from anynpu.firmware.generator.graph import Graph, Node, scale_of, zero_of
from anynpu.firmware.generator.layer import Call, Constant, Layer, Tensor, Value, require

INTEGER_BITS = 5


def exponentials(beta: float, scale: float) -> list[int]:
    """Returns exp(-d * scale * beta) in Q0.31 for d from 0; the table ends where the kernel's sum leaves values out."""
    real = min(beta * scale * (1 << (31 - INTEGER_BITS)), (1 << 31) - 1.0)
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
    length = image.shape[-1]
    rows = math.prod(image.shape) // length
    if image.dtype == "int16":
        return _wide(graph, node, rows, length)
    require(out.scale == (1 / 256,) and zero_of(out) == -128, "takes an output of scale 1/256 and zero point -128")
    table = exponentials(node.options.beta, scale_of(image))
    params: dict[str, Value] = {
        "exponentials": Constant("exponentials", "int32_t", np.array(table), 4),
        "entries": len(table),
        "rows": rows,
        "length": length,
    }
    arguments = (Tensor(node.inputs[0], "int8_t"), Tensor(node.outputs[0], "int8_t"))
    return Layer(node, (Call("softmax_s8", params, arguments),), over=(node.inputs[0],))


def _wide(graph: Graph, node: Node, rows: int, length: int) -> Layer:
    require(False, "has no kernel for int16 yet")
    return Layer(node)
