"""Pools, and the pools over a whole image."""

from __future__ import annotations

import numpy as np

from anynpu.lowering.graph import int32
from anynpu.lowering.lower import CHANNELS_LAST, Lowering
from anynpu.lowering.operators.convolution import give_image, image
from anynpu.lowering.operators.windows import Window, pad_image, padded, window_of
from anynpu.lowering.options import Mul, Padding, Pool2D, Reducer
from anynpu.lowering.table import Node, Refused, operator


def _pool(at: Lowering, kind: str, tensor: str, window: Window, padding: Padding, stem: str) -> str:
    batch, _, _, channels = at.tensors[tensor].shape
    options = Pool2D(
        padding=padding,
        stride_h=window.strides[0],
        stride_w=window.strides[1],
        filter_height=window.kernel[0],
        filter_width=window.kernel[1],
    )
    return at.emit(kind, (tensor,), (batch, *window.output, channels), options, stem)


@operator("MaxPool")
def max_pool(at: Lowering, node: Node) -> None:
    """MAX_POOL_2D; pads that SAME does not mean are zeros behind a rectifier, otherwise below every value."""
    if len(node.outputs) > 1 and at.reads[node.outputs[1]]:
        raise Refused("the places of the maxima are read")
    window = _window(at, node)
    tensor, padding = padded(at, image(at, node.input(0)), window, lowest=True)
    give_image(at, node.output, _pool(at, "MAX_POOL_2D", tensor, window, padding, node.output))


def _window(at: Lowering, node: Node) -> Window:
    window = window_of(node, at.shape(node.input(0))[2:], node.integers("kernel_shape", []))
    if window.dilations != (1, 1):
        raise Refused("a dilated pool has no TFLite operator")
    return window


@operator("AveragePool")
def average_pool(at: Lowering, node: Node) -> None:
    """AVERAGE_POOL_2D; where ONNX divides by another count than TFLite, PAD and a MUL by the ratio of the counts."""
    window = _window(at, node)
    tensor = image(at, node.input(0))
    counted = bool(node.get("count_include_pad", 0))
    # For each window the elements it spans divided by those that ONNX counts
    rows = []
    for axis in range(2):
        reach, size = window.reach[axis], window.size[axis]
        low = 0 if counted else window.begin[axis]
        high = size + window.begin[axis] + (window.end[axis] if counted else 0)
        starts = np.arange(window.output[axis]) * window.strides[axis]
        counts = np.minimum(starts + reach, high) - np.maximum(starts, low)
        rows.append(reach / np.maximum(counts, 1))
    ratio = np.asarray(np.outer(rows[0], rows[1]), np.float32)
    unpadded = window.begin == (0, 0) and window.needed[1] == (0, 0)
    if window.is_same and (not counted or unpadded):
        result = _pool(at, "AVERAGE_POOL_2D", tensor, window, "SAME", node.output)
    else:
        begin, end = window.needed
        if not unpadded:
            tensor = pad_image(at, tensor, begin, end)
        result = _pool(at, "AVERAGE_POOL_2D", tensor, window, "VALID", node.output)
        if not np.all(ratio == 1.0):
            factor = at.store(ratio.reshape(1, *ratio.shape, 1), f"{node.output}/counts")
            result = at.emit("MUL", (result, factor), at.tensors[result].shape, Mul(), node.output)
    give_image(at, node.output, result)


@operator("GlobalAveragePool")
def global_average_pool(at: Lowering, node: Node) -> None:
    """MEAN over the spatial axes, with the channels last."""
    _reduced(at, node, "MEAN")


@operator("GlobalMaxPool")
def global_max_pool(at: Lowering, node: Node) -> None:
    """REDUCE_MAX over the spatial axes, with the channels last."""
    _reduced(at, node, "REDUCE_MAX")


def _reduced(at: Lowering, node: Node, kind: str) -> None:
    rank = at.rank(node.input(0))
    axes = CHANNELS_LAST.get(rank)
    if axes is None:
        raise Refused(f"an input of {rank} axes")
    tensor = at.stored(node.input(0), axes)
    shape = at.tensors[tensor].shape
    over = at.store(int32(range(1, rank - 1)), "axes")
    result = at.emit(kind, (tensor, over), (shape[0], *([1] * (rank - 2)), shape[-1]), Reducer(True), node.output)
    at.give(node.output, result, axes)
