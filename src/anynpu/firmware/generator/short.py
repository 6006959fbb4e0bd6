"""Layers of 16-bit activations with the instructions of a core: SMLAD of the DSP extension, or Helium (MVE).

Their kernels keep sums in 32 bits and scale them with one multiplication. Where weights, bias or factor of a layer do
not allow that, it stays plain C, which adds in 64 bits.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from anynpu.firmware.generator.convolution import (
    Filters,
    has_border,
    is_narrow,
    read_convolution,
    read_dense,
    read_depthwise,
)
from anynpu.firmware.generator.graph import Graph, Node
from anynpu.firmware.generator.layer import Call, Constant, Layer, Scratch, Tensor, Value, VariantEmitter
from anynpu.firmware.generator.windows import is_pointwise
from anynpu.tensors import Array

LARGEST = 1 << 15
EVEN_FIRST = (0, 2, 4, 6, 1, 3, 5, 7)


@dataclass(frozen=True)
class Form:
    """How an extension's kernels take weights and channels."""

    extension: str
    lanes: int
    """Rows of weights are a multiple of these."""
    point: int
    """Factors are times 2^-point."""


DSP, MVE = Form("dsp", 4, 32), Form("mve", 8, 31)


def factors(f: Filters, point: int) -> list[int] | None:
    """Returns the factor of each channel times 2^point, or None where one does not fit."""
    scaled = []
    for weights, bias, (multiplier, shift) in zip(f.weights, f.bias.tolist(), f.factors, strict=True):
        bound = int(np.abs(weights.astype(np.int64)).sum()) * LARGEST + abs(bias)
        reduced = (multiplier + (1 << 15)) >> 16 if multiplier < 0x7FFF0000 else 0x7FFF
        right = 15 - shift
        if bound >= 1 << 31:
            return None
        if bound * reduced < 1 << (right - 1):  # every sum becomes zero
            scaled.append(0)
        elif 16 <= right <= 31:
            scaled.append(reduced << (point - right))
        else:
            return None
    return scaled


def _in_fours(bias: Array, scales: Array) -> Array:
    """Returns four biases, four factors and so on."""
    return np.stack([bias.reshape(-1, 4), scales.reshape(-1, 4)], axis=1).reshape(-1)


def _dots(form: Form, f: Filters, scales: list[int]) -> tuple[dict[str, Value], int]:
    """Returns weights and channels of dot products, and the padded length of a row."""
    rows = f.weights.reshape(len(f.weights), -1)
    rows = np.pad(rows, ((0, 0 if form is DSP else -len(rows) % 4), (0, -rows.shape[1] % form.lanes)))
    if form is DSP:
        channels = Constant("channels", "anynpu_short_channel", np.stack([f.bias, np.array(scales)], axis=1), 8)
        # Bytes 0 and 2 of a word are the first two of four.
        words = rows.reshape(-1, 4)[:, [0, 2, 1, 3]].astype(np.int8).reshape(-1).view("<i4").astype(np.int64)
        return {"weights": Constant("weights", "int32_t", words, 4), "channels": channels}, rows.shape[1]
    more = (0, -len(scales) % 4)
    packed = _in_fours(np.pad(f.bias, more), np.pad(np.array(scales), more))
    weights = Constant("weights", "int8_t", rows.reshape(-1))
    return {"weights": weights, "channels": Constant("channels", "int32_t", packed, 4)}, rows.shape[1]


def _pointwise(form: Form, node: Node, f: Filters, scales: list[int], rows: int) -> Layer:
    fields, length = _dots(form, f, scales)
    depth = f.weights[0].size
    params: dict[str, Value] = {**fields, "rows": rows, "depth": depth, "length": length}
    params |= {"out_channels": len(f.weights), "low": f.low, "high": f.high}
    arguments = (Tensor(node.inputs[0], "int16_t"), Tensor(node.outputs[0], "int16_t"))
    call = Call(f"pointwise_{form.extension}_s16", params, arguments)
    return Layer(node, (call,), reads_past=2 * (length - depth))


def _conv(form: Form, node: Node, w: dict[str, int], f: Filters, scales: list[int]) -> Layer:
    fields, length = _dots(form, f, scales)
    params: dict[str, Value] = {"window": w, **fields, "length": length, "low": f.low, "high": f.high}
    arguments = (Tensor(node.inputs[0], "int16_t"), Tensor(node.outputs[0], "int16_t"), Scratch("int16_t"))
    return Layer(node, (Call(f"conv_{form.extension}_s16", params, arguments),), scratch=4 * length)


def conv_2d(form: Form) -> VariantEmitter:
    """CONV_2D."""

    def emit(graph: Graph, node: Node) -> Layer | None:
        w, f, groups = read_convolution(graph, node)
        scales = None if groups > 1 or is_narrow(graph, node) else factors(f, form.point)
        if scales is None:
            return None
        if is_pointwise(w):
            return _pointwise(form, node, f, scales, w["batches"] * w["in_height"] * w["in_width"])
        return _conv(form, node, w, f, scales)

    return emit


def fully_connected(form: Form) -> VariantEmitter:
    """FULLY_CONNECTED."""

    def emit(graph: Graph, node: Node) -> Layer | None:
        w, f = read_dense(graph, node)
        scales = None if is_narrow(graph, node) else factors(f, form.point)
        return None if scales is None else _pointwise(form, node, f, scales, w["in_height"])

    return emit


def depthwise_conv_2d(form: Form) -> VariantEmitter:
    """DEPTHWISE_CONV_2D; that of one channel is an ordinary convolution."""

    def emit(graph: Graph, node: Node) -> Layer | None:
        w, f = read_depthwise(graph, node)
        scales = None if is_narrow(graph, node) else factors(f, form.point)
        if scales is None:
            return None
        if w["in_channels"] == 1:
            return _conv(form, node, w, f, scales)
        return _depthwise(form, node, w, f, scales) if w["out_channels"] == w["in_channels"] else None

    return emit


def _depthwise(form: Form, node: Node, w: dict[str, int], f: Filters, scales: list[int]) -> Layer:
    depth, group = w["in_channels"], 2 if form is DSP else 8
    more = (0, -depth % group)
    blocks = np.pad(f.weights.reshape(depth, -1), (more, (0, 0))).reshape(-1, group, w["height"] * w["width"])
    taps = np.ascontiguousarray(blocks.transpose(0, 2, 1))
    bias, factor = np.pad(f.bias, more), np.pad(np.array(scales), more)
    if form is DSP:
        words = taps.astype("<i2").reshape(-1).view("<i4").astype(np.int64)
        weights = Constant("weights", "int32_t", words, 4)
        channels = Constant("channels", "anynpu_short_channel", np.stack([bias, factor], axis=1), 8)
    else:
        weights = Constant("weights", "int8_t", taps.reshape(-1))
        bias, factor = (values.reshape(-1, 8)[:, EVEN_FIRST] for values in (bias, factor))
        channels = Constant("channels", "int32_t", _in_fours(bias, factor), 4)
    params: dict[str, Value] = {"window": w, "weights": weights, "channels": channels, "low": f.low, "high": f.high}
    arguments = (Tensor(node.inputs[0], "int16_t"), Tensor(node.outputs[0], "int16_t"), Scratch("int16_t"))
    past = 2 * (-depth % group)
    border = 2 * w["height"] * w["width"] * depth + past if has_border(w) else 0
    return Layer(node, (Call(f"depthwise_{form.extension}_s16", params, arguments),), scratch=border, reads_past=past)
