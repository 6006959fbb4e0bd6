"""How many instructions a layer is expected to take: a small model, fitted to counts of QEMU (gcc 12, -O3).

Instructions are not cycles and not time. The model chooses between kernels for the same layer, so what matters is that
it is right about which of two needs fewer: on MLPerf Tiny's layers it is mostly within a tenth of the counts.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from anynpu.firmware.generator.layer import Layer
from anynpu.plugins import registering

Params = Mapping[str, Any]
Cost = Callable[[Params], float]
COSTS: dict[str, Cost] = {}


kernel = registering(COSTS)
"""Registers what kernels of some names take."""


def expected(layer: Layer) -> int | None:
    """Returns the instructions that a layer is expected to take, or None where no kernel of it has a model."""
    counts = [COSTS[call.kernel](call.params) if call.kernel in COSTS else None for call in layer.calls]
    if not counts or any(count is None for count in counts):
        return None if layer.calls else 0
    return round(sum(count for count in counts if count is not None))


def _blocks(count: int, size: int) -> int:
    return -(-count // size)


def _pixels(w: Params) -> int:
    return int(w["batches"] * w["out_height"] * w["out_width"])


def _border_pixels(w: Params) -> int:
    """Returns how many windows reach outside of the image."""
    inside = []
    for axis, short in (("height", "y"), ("width", "x")):
        span, stride, pad = (w[axis] - 1) * w[f"step_{short}"], w[f"stride_{short}"], w[f"pad_{short}"]
        starts = (i * stride - pad for i in range(w[f"out_{axis}"]))
        inside.append(sum(start >= 0 and start + span < w[f"in_{axis}"] for start in starts))
    return int(_pixels(w) - w["batches"] * inside[0] * inside[1])


def _plain_dots(length: int) -> float:
    """Returns the instructions of one output of two-by-two dot products, requantised."""
    return float(26 + 2.16 * (length & ~7) + 3.6 * (length & 7))


def _plain_gather(w: Params) -> float:
    patch = w["height"] * w["width"] * w["in_channels"]
    return float((60 + 15 * w["height"] + 2.2 * patch) + 40 * w["height"] * _border_pixels(w) / _pixels(w))


@kernel("pointwise_s8")
def _pointwise(p: Params) -> float:
    return float(2 * _blocks(p["rows"], 2) * (20 + p["out_channels"] * _plain_dots(p["length"])))


@kernel("conv_s8")
def _conv(p: Params) -> float:
    w = p["window"]
    return float(_pixels(w) * (_plain_gather(w) + w["out_channels"] * _plain_dots(p["length"])))


@kernel("dense_s8")
def _dense(p: Params) -> float:
    fours, rest = p["out_channels"] & ~3, p["out_channels"] & 3
    return float(30 + fours * (18 + 2.51 * p["length"]) + rest * (18 + 5.0 * p["length"]))


@kernel("depthwise_s8")
def _depthwise(p: Params) -> float:
    w = p["window"]
    taps = w["height"] * w["width"]
    pixel = 60 + w["in_channels"] * (24 + (4.0 if w["width"] == 3 else 6.0) * taps)
    return float(_pixels(w) * pixel + _border_pixels(w) * _plain_gather(w))


@kernel("conv_any_s8")
def _conv_any(p: Params) -> float:
    w = p["window"]
    depth = w["in_channels"] // p["groups"]
    return float(_pixels(w) * w["out_channels"] * (60 + w["height"] * w["width"] * (12 + 6.0 * depth)))


@kernel("add_s16", "add_s8")
def _add(p: Params) -> float:
    return float(100 + 38.0 * math.prod(p["shape"]["size"]))


@kernel("average_pool_s8", "max_pool_s8")
def _pool(p: Params) -> float:
    w = p["window"]
    return float(_pixels(w) * (60 + w["in_channels"] * (30 + 10 * w["height"] + 6.0 * w["height"] * w["width"])))


def _single_mve(p: Params, depth: int) -> float:
    return float(45 + _blocks(depth, 4) * (46 + 10 * (p["length"] // 16)))


def _rows_mve(p: Params, rows: int, depth: int) -> float:
    fours = _blocks(depth, 4)
    three = float(45 + 60 * _blocks(depth, 64) + 2 * fours * (22 + 12 * (p["length"] // 16)) + 40 * fours)
    return float(rows // 3 * three + rows % 3 * _single_mve(p, depth))


@kernel("pointwise_mve_s8")
def _pointwise_mve(p: Params) -> float:
    return float(40 + _rows_mve(p, p["rows"], p["out_channels"]))


@kernel("conv_mve_s8")
def _conv_mve(p: Params) -> float:
    w = p["window"]
    row = w["width"] * w["in_channels"]
    copy = 55 + w["height"] * (10 + 3 * _blocks(row, 16))
    gather = 60 + w["height"] * ((75 + 3 * _blocks(row, 16)) if w["step_x"] == 1 else w["width"] * 20)
    border = _border_pixels(w) if w["step_x"] == 1 else _pixels(w)
    dots = _rows_mve(p, _pixels(w) // w["batches"], w["out_channels"]) * w["batches"]
    return float(60 + dots + (_pixels(w) - border) * copy + border * gather)


@kernel("conv_strip_mve_s8")
def _conv_strip_mve(p: Params) -> float:
    w = p["window"]
    columns = (w["out_width"] - 1) * w["stride_x"] + w["width"]
    piece = 5 if w["in_channels"] <= 16 else 12 + 3 * _blocks(w["in_channels"], 16)
    row = 80 + columns * (14 + w["height"] * piece) + _rows_mve(p, w["out_width"], w["out_channels"])
    return float(60 + float(w["batches"] * w["out_height"]) * row)


@kernel("dense_mve_s8")
def _dense_mve(p: Params) -> float:
    return float(20 + _single_mve(p, p["out_channels"]))


@kernel("depthwise_mve_s8")
def _depthwise_mve(p: Params) -> float:
    w = p["window"]
    eights = _blocks(w["in_channels"], 8)
    if w["height"] == w["width"] == 3:
        row = eights * (25 + 96 * w["out_width"])
    else:
        taps = w["height"] * (16 + 13 * w["width"])
        row = w["out_width"] * (20 + eights * (60 + taps))
    lines = min(w["stride_y"], p["lines"]) * (60 + 3 * _blocks(p["line"], 16))
    return float(80 + float(w["batches"] * w["out_height"]) * (110 + row + lines))


def _pairs_mve(p: Params, block: float) -> float:
    size = p["shape"]["size"]
    rows, length = math.prod(size[:-1]), size[-1]
    whole = p["shape"]["stride1"][-1] and p["shape"]["stride2"][-1]
    fours = length // 4 * block if whole else length // 4 * (block + 12)
    return float(150 + rows * (60 + fours + (block + 12 if length % 4 else 0)))


@kernel("add_mve_s16", "add_mve_s8")
def _add_mve(p: Params) -> float:
    return _pairs_mve(p, 30)


@kernel("mul_mve_s16", "mul_mve_s8")
def _mul_mve(p: Params) -> float:
    return _pairs_mve(p, 18)


@kernel("mean_s16", "mean_s8")
def _mean(p: Params) -> float:
    return float(60 + math.prod(p["size"]) * (60 + 13.0 * math.prod(p["reduced_size"])))


@kernel("mean_mve_s16", "mean_mve_s8")
def _mean_mve(p: Params) -> float:
    return float(60 + p["outer"] * (10 + _blocks(p["inner"], 4) * (35 + 6.0 * p["count"])))


@kernel("mean_rows_mve_s8")
def _mean_rows_mve(p: Params) -> float:
    return float(30 + p["rows"] * (50 + 4.0 * _blocks(p["count"], 16)))


@kernel("softmax_s8")
def _softmax(p: Params) -> float:
    return float(30 + p["rows"] * (110 + 42.0 * p["length"]))


@kernel("softmax_mve_s8")
def _softmax_mve(p: Params) -> float:
    return float(60 + p["rows"] * (150 + 8 * _blocks(p["length"], 16) + 36.0 * _blocks(p["length"], 4)))


@kernel("average_pool_mve_s8")
def _average_pool_mve(p: Params) -> float:
    w = p["window"]
    eights = w["in_channels"] // 8 if w["height"] * w["width"] < 256 else 0
    fours = _blocks(w["in_channels"] - 8 * eights, 4)
    window = 10 * w["height"] + 4.0 * w["height"] * w["width"]
    return float(_pixels(w) * (80 + eights * (135 + window) + fours * (75 + window)))


@kernel("max_pool_mve_s8")
def _max_pool_mve(p: Params) -> float:
    w = p["window"]
    blocks = _blocks(w["in_channels"], 16)
    return float(_pixels(w) * (60 + blocks * (25 + 10 * w["height"] + 7.0 * w["height"] * w["width"])))


def _dots_dsp(length: int) -> float:
    return float(20 + 1.13 * (length & ~7) + 1.5 * (length & 4))


@kernel("pointwise_dsp_s8")
def _pointwise_dsp(p: Params) -> float:
    pairs = _blocks(p["rows"], 2)
    return float(30 + 2 * pairs * (30 + 1.6 * p["length"] + p["out_channels"] * _dots_dsp(p["length"])))


@kernel("conv_dsp_s8")
def _conv_dsp(p: Params) -> float:
    w = p["window"]
    row = w["width"] * w["in_channels"]
    inside = 0 if w["step_x"] > 1 or row % 4 else _pixels(w) - _border_pixels(w)
    widen = inside * (50 + w["height"] * 12 + 1.6 * p["length"])
    gather = (_pixels(w) - inside) * (40 + _plain_gather(w) + 1.6 * p["length"])
    return float(50 + widen + gather + _pixels(w) * w["out_channels"] * _dots_dsp(p["length"]))


@kernel("dense_dsp_s8")
def _dense_dsp(p: Params) -> float:
    return float(40 + _blocks(p["out_channels"], 4) * (85 + 5.75 * p["length"]))


@kernel("depthwise_dsp_s8")
def _depthwise_dsp(p: Params) -> float:
    w = p["window"]
    taps = w["height"] * w["width"]
    fours = _blocks(w["in_channels"], 4)
    pixel = 80 + fours * (100 + (9.0 if w["width"] == 3 else 12.0) * taps)
    return float(_pixels(w) * pixel + _border_pixels(w) * _plain_gather(w))


@kernel("conv_s16")
def _conv_s16(p: Params) -> float:
    """Plain C of 16-bit activations: sums of 64 bits, window by window."""
    w = p["window"]
    depth = w["in_channels"] // p["groups"]
    taps = w["height"] * w["width"]
    whole = p["groups"] == 1 and w["step_x"] == 1
    dots = w["height"] * (45 + 5.5 * w["width"] * depth) if whole else taps * (50 + 5.5 * depth)
    return float(_pixels(w) * w["out_channels"] * (100 + dots))


def _patch_s16(w: Params) -> float:
    rows = w["height"] * (25 + 1.3 * w["width"] * w["in_channels"])
    return float(30 + rows + _border_pixels(w) / _pixels(w) * w["height"] * w["width"] * 25)


def _pair_dsp_s16(p: Params, rows: int, depth: int) -> float:
    return float(_blocks(rows, 2) * (35 + _blocks(depth, 2) * (50 + 5.6 * p["length"])))


def _double_mve_s16(p: Params, rows: int, depth: int) -> float:
    fours, steps = _blocks(depth, 4), p["length"] // 8
    return float(rows // 2 * (30 + fours * (70 + 28 * steps)) + rows % 2 * (30 + fours * (40 + 15 * steps)))


def _windows_s16(p: Params, dots: Callable[[Params, int, int], float]) -> float:
    w = p["window"]
    each = dots(p, _pixels(w) // w["batches"], w["out_channels"])
    return float(_pixels(w) * _patch_s16(w) + w["batches"] * each)


def _depthwise_s16(p: Params, group: int, block: float, tap: float) -> float:
    w = p["window"]
    pixel = 70 + _blocks(w["in_channels"], group) * (block + tap * w["height"] * w["width"])
    return float(_pixels(w) * pixel + _border_pixels(w) * _patch_s16(w))


COSTS |= {
    "mul_s16": lambda p: 100 + 36.0 * math.prod(p["shape"]["size"]),
    "add_dsp_s16": lambda p: 60 + 30.0 * p["count"],
    "conv_dsp_s16": lambda p: _windows_s16(p, _pair_dsp_s16),
    "depthwise_dsp_s16": lambda p: _depthwise_s16(p, 2, 45, 7.5),
    "pointwise_dsp_s16": lambda p: 30 + _pair_dsp_s16(p, p["rows"], p["out_channels"]),
    "conv_mve_s16": lambda p: _windows_s16(p, _double_mve_s16),
    "depthwise_mve_s16": lambda p: _depthwise_s16(p, 8, 50, 10.0),
    "pointwise_mve_s16": lambda p: 30 + _double_mve_s16(p, p["rows"], p["out_channels"]),
    "add_dsp_s8": lambda p: 60 + 30.0 * p["count"],
    "clamp_s8": lambda p: 20 + 7.0 * p["count"],
    "mul_s8": lambda p: 100 + 36.0 * math.prod(p["shape"]["size"]),
    "table_u8": lambda p: 15 + 5.0 * p["count"],
    "table_mve_u8": lambda p: 25 + 6.0 * _blocks(p["count"], 16),
}
