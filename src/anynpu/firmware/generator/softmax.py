"""SOFTMAX: the exponentials are a table, since only differences to the maximum matter."""

from __future__ import annotations

import math

import numpy as np

from anynpu.firmware.generator.fixedpoint import exp_negative, high_product, quantize_multiplier
from anynpu.firmware.generator.graph import Graph, Node, scale_of, zero_of
from anynpu.firmware.generator.interpolated import interpolated
from anynpu.firmware.generator.layer import Call, Constant, Layer, Tensor, Value, require
from anynpu.firmware.generator.types import C_TYPES, SUFFIX

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
        unit = 2 / np.float32(65535)  # of numbers from -1 to 1
        powers = interpolated(math.exp, 10 / np.float32(65535), unit, 32767)
        shares = interpolated(lambda x: 1 / (1 + x), 1 / np.float32(65535), unit, -32768)
        params: dict[str, Value] = {
            "exponentials": Constant("exponentials", "int16_t", powers, 2),
            "reciprocals": Constant("reciprocals", "int16_t", shares, 2),
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
