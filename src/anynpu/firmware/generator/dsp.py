"""Layers with Arm's DSP extension, as Cortex-M4, M7 and M33 have it: two products of 16 bits at once (SMLAD)."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from anynpu.firmware.generator import binary
from anynpu.firmware.generator.convolution import Filters, has_border, read_convolution, read_dense, read_depthwise
from anynpu.firmware.generator.graph import Graph, Node
from anynpu.firmware.generator.layer import Call, Constant, Layer, Scratch, Tensor, Value
from anynpu.firmware.generator.types import SUFFIX
from anynpu.firmware.generator.windows import is_pointwise
from anynpu.tensors import Array

SUM_LIMIT = 1 << 23
"""What the sum of an odd channel must stay below: 256 times it fits 32 bits."""


def packed(rows: Array) -> Array | None:
    """Returns rows of weights as the kernels read them, two channels in 16 bits, or None where they do not fit.

    Of four values, 0 and 2 come first, then 1 and 3: the order in which inputs are widened.
    """
    rows = np.pad(rows.astype(np.int32), ((0, len(rows) % 2), (0, -rows.shape[1] % 4)))
    even, odd = rows[::2], rows[1::2]
    if (odd == -128).any() or (np.abs(odd).sum(axis=1) * 128 >= SUM_LIMIT).any():
        return None
    both = (256 * odd + even).reshape(len(even), -1, 4)[:, :, [0, 2, 1, 3]]
    return both.astype("<i2").reshape(-1).view("<i4").astype(np.int64)


def _fields(f: Filters) -> tuple[dict[str, Value], int] | None:
    """Returns the fields that all kernels share, and the padded length of a row; None where weights do not fit."""
    rows = f.weights.reshape(len(f.weights), -1)
    weights = packed(rows)
    if not f.fast or weights is None:
        return None
    fields: dict[str, Value] = {
        "weights": Constant("weights", "int32_t", weights, 4),
        "channels": f.packed("channels", folded=True),
        "length": rows.shape[1] + -rows.shape[1] % 4,
        "offset": 2 * f.out_zero + 1,
    }
    return fields, rows.shape[1] + -rows.shape[1] % 4


def _pointwise(graph: Graph, node: Node, f: Filters, rows: int) -> Layer | None:
    shared = _fields(f)
    if shared is None:
        return None
    fields, length = shared
    depth = f.weights[0].size
    arguments: tuple[Tensor | Scratch, ...] = (Tensor(node.inputs[0], "int8_t"), Tensor(node.outputs[0], "int8_t"))
    fields["out_channels"] = len(f.weights)
    if rows > 1:
        fields |= {"rows": rows, "depth": depth}
        arguments = (*arguments, Scratch("int32_t"))
    call = Call("pointwise_dsp_s8" if rows > 1 else "dense_dsp_s8", fields, arguments)
    scratch = 4 * length if rows > 1 else 0
    return Layer(node, (call, *f.clamped(graph, node)), scratch=scratch, reads_past=length - depth)


def _conv(graph: Graph, node: Node, w: dict[str, int], f: Filters) -> Layer | None:
    shared = _fields(f)
    if shared is None:
        return None
    fields, length = shared
    params: dict[str, Value] = {"window": w, **fields, "in_zero": f.in_zero}
    arguments = (Tensor(node.inputs[0], "int8_t"), Tensor(node.outputs[0], "int8_t"), Scratch("int32_t"))
    return Layer(node, (Call("conv_dsp_s8", params, arguments), *f.clamped(graph, node)), scratch=4 * length)


def conv_2d(graph: Graph, node: Node) -> Layer | None:
    """CONV_2D."""
    w, f, groups = read_convolution(graph, node)
    if groups > 1:
        return None
    if is_pointwise(w):
        return _pointwise(graph, node, f, w["batches"] * w["in_height"] * w["in_width"])
    return _conv(graph, node, w, f)


def depthwise_conv_2d(graph: Graph, node: Node) -> Layer | None:
    """DEPTHWISE_CONV_2D; that of one channel is an ordinary convolution."""
    w, f = read_depthwise(graph, node)
    if w["in_channels"] == 1:
        return _conv(graph, node, w, f)
    if w["out_channels"] != w["in_channels"] or not f.fast:
        return None
    params: dict[str, Value] = {
        "window": w,
        "weights": Constant("weights", "int32_t", taps_packed(f.weights), 4),
        "channels": f.packed("channels", folded=True),
        "offset": 2 * f.out_zero + 1,
        "in_zero": f.in_zero,
    }
    arguments = (Tensor(node.inputs[0], "int8_t"), Tensor(node.outputs[0], "int8_t"), Scratch("int8_t"))
    past = -w["in_channels"] % 4
    border = w["height"] * w["width"] * w["in_channels"] + past if has_border(w) else 0
    call = Call("depthwise_dsp_s8", params, arguments)
    return Layer(node, (call, *f.clamped(graph, node)), scratch=border, reads_past=past)


def taps_packed(weights: Array) -> Array:
    """Returns the weights of four channels at a time, tap by tap, as words of channels 0 and 2, then 1 and 3."""
    rows = weights.reshape(len(weights), -1)
    rows = np.pad(rows, ((0, -len(rows) % 4), (0, 0)))
    blocks = rows.reshape(len(rows) // 4, 4, -1)[:, [0, 2, 1, 3]].transpose(0, 2, 1)
    return np.ascontiguousarray(blocks).astype("<i2").reshape(-1).view("<i4").astype(np.int64)


def add(graph: Graph, node: Node) -> Layer | None:
    """ADD and SUB of tensors of one shape."""
    a, b, out = graph.input(node, 0), graph.input(node, 1), graph.output(node)
    if a.shape != out.shape or b.shape != out.shape:
        return None
    plain = binary.add(graph, node)
    fields = {name: value for name, value in plain.calls[0].params.items() if name != "shape"}
    call = replace(
        plain.calls[0], kernel=f"add_dsp_{SUFFIX[out.dtype]}", params={"count": math.prod(out.shape), **fields}
    )
    return replace(plain, calls=(call,))


def fully_connected(graph: Graph, node: Node) -> Layer | None:
    """FULLY_CONNECTED."""
    w, f = read_dense(graph, node)
    return _pointwise(graph, node, f, w["in_height"])
