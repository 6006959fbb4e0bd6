"""Layers with Helium (MVE), the vector instructions of Cortex-M55 and Cortex-M85: 16 products of 8 bits at once."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from anynpu.firmware.generator.convolution import Filters, read_convolution, read_dense, read_depthwise
from anynpu.firmware.generator.graph import Graph, Node
from anynpu.firmware.generator.layer import Call, Constant, Layer, Scratch, Tensor, Value
from anynpu.firmware.generator.windows import is_pointwise
from anynpu.tensors import Array

LANES = 16
EIGHT = (0, 2, 4, 6, 1, 3, 5, 7)
"""The order in which a vector of eight channels falls apart into two of four."""


def _range(f: Filters) -> dict[str, int]:
    return {"zero": f.out_zero, "low": f.low, "high": f.high}


def _channels(f: Filters, order: Array) -> Constant:
    """Returns four biases, four multipliers, four shifts and so on, of the channels in this order; -1 is none."""
    rows = np.vstack([f.folded(), np.zeros((1, 3), np.int64)])[order]
    rows[:, 2] = -rows[:, 2] - 1
    return Constant("channels", "int32_t", rows.reshape(-1, 4, 3).transpose(0, 2, 1).reshape(-1), 4)


def _in_order(count: int, multiple: int) -> Array:
    """Returns the numbers of all channels, with -1 up to a multiple."""
    return np.pad(np.arange(count), (0, -count % multiple), constant_values=-1)


def _rows(weights: Array, f: Filters) -> tuple[dict[str, Value], int]:
    """Returns the fields of dot products that all kernels share, and the padded length of a row."""
    rows = weights.reshape(len(weights), -1)
    rows = np.pad(rows, ((0, -len(rows) % 4), (0, -rows.shape[1] % LANES)))
    fields: dict[str, Value] = {
        "weights": Constant("weights", "int8_t", rows.reshape(-1)),
        "channels": _channels(f, _in_order(len(f.weights), 4)),
    }
    return fields, rows.shape[1]


def _pointwise(node: Node, f: Filters, rows: int) -> Layer:
    fields, length = _rows(f.weights, f)
    stride = f.weights[0].size
    params: dict[str, Value] = {
        **fields,
        **({"rows": rows, "stride": stride} if rows > 1 else {}),
        "length": length,
        "out_channels": len(f.weights),
        "range": _range(f),
    }
    arguments = (Tensor(node.inputs[0], "int8_t"), Tensor(node.outputs[0], "int8_t"))
    call = Call("pointwise_mve_s8" if rows > 1 else "dense_mve_s8", params, arguments)
    return Layer(node, (call,), reads_past=length - stride)


def conv_2d(graph: Graph, node: Node) -> Layer | None:
    """CONV_2D."""
    w, f, groups = read_convolution(graph, node)
    if groups > 1 or not f.fast:
        return None
    if is_pointwise(w):
        return _pointwise(node, f, w["batches"] * w["in_height"] * w["in_width"])
    return _conv(node, w, f)


def _conv(node: Node, w: dict[str, int], f: Filters) -> Layer:
    """Returns the convolution over patches, with the one over strips where the arena has room for them."""
    fields, length = _rows(f.weights, f)
    params: dict[str, Value] = {"window": w, **fields, "length": length, "range": _range(f), "in_zero": f.in_zero}
    arguments = (Tensor(node.inputs[0], "int8_t"), Tensor(node.outputs[0], "int8_t"), Scratch("int8_t"))
    patches = Layer(node, (Call("conv_mve_s8", params, arguments),), scratch=3 * length + LANES, reads_past=LANES - 1)
    if w["step_x"] > 1:
        return patches
    columns = (w["out_width"] - 1) * w["stride_x"] + w["width"]
    # The last window reads up to its padded length; whole vectors are written.
    last = (w["out_width"] - 1) * w["stride_x"] * w["height"] * w["in_channels"] + length
    scratch = max(columns * w["height"] * w["in_channels"] + LANES, last)
    fields, _ = _rows(f.weights.transpose(0, 2, 1, 3), f)
    call = Call("conv_strip_mve_s8", {**params, **fields}, arguments)
    return replace(patches, roomy=replace(patches, calls=(call,), scratch=scratch))


def depthwise_conv_2d(graph: Graph, node: Node) -> Layer | None:
    """DEPTHWISE_CONV_2D."""
    w, f = read_depthwise(graph, node)
    if not f.fast:
        return None
    if w["in_channels"] == 1:
        return _conv(node, w, f)
    if w["out_channels"] != w["in_channels"] or f.weights.min() == -128:
        return None
    depth = w["in_channels"]
    blocks = np.pad(f.weights.reshape(depth, -1), ((0, -depth % 8), (0, 0))).reshape(-(-depth // 8), 8, -1)
    order = _in_order(depth, 8).reshape(-1, 8)[:, EIGHT].reshape(-1)
    lines = (w["height"] - 1) * w["step_y"] + 1
    columns = (w["out_width"] - 1) * w["stride_x"] + (w["width"] - 1) * w["step_x"] + 1
    line = columns * depth + LANES
    params: dict[str, Value] = {
        "window": w,
        "weights": Constant("weights", "int8_t", blocks.transpose(0, 2, 1).reshape(-1)),
        "channels": _channels(f, order),
        "lines": lines,
        "line": line,
        "range": _range(f),
        "in_zero": f.in_zero,
    }
    arguments = (Tensor(node.inputs[0], "int8_t"), Tensor(node.outputs[0], "int8_t"), Scratch("int8_t"))
    call = Call("depthwise_mve_s8", params, arguments)
    # In place, where each row of the output ends before the first row of the input that is still to be read.
    reach = lines - w["pad_y"]
    read = (min(y * w["stride_y"] + reach, w["in_height"]) for y in range(w["out_height"]))
    behind = all((y + 1) * w["out_width"] <= max(rows, 0) * w["in_width"] for y, rows in enumerate(read))
    over = (node.inputs[0],) if w["batches"] == 1 and behind else ()
    return Layer(node, (call,), scratch=lines * line, over=over, reads_past=LANES - 1)


def fully_connected(graph: Graph, node: Node) -> Layer | None:
    """FULLY_CONNECTED."""
    w, f = read_dense(graph, node)
    return _pointwise(node, f, w["in_height"]) if f.fast else None
