"""Convolutions in integers, operator by operator, for what Vela 5.2.0 makes of some: other padding, another scale,
another picture. `emulated.py` says where."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from anynpu.targets.flatbuffer import TfliteOperator

SAME = 0
ACTIVATIONS = {0: (-math.inf, math.inf), 1: (0, math.inf), 2: (-1, 1), 3: (0, 6)}
"""The range of what is fused: none, RELU, RELU_N1_TO_1, RELU6."""


@dataclass(frozen=True)
class Axis:
    """One direction of a convolution: how long its kernel is, how it steps, and what is padded before and behind."""

    kernel: int
    stride: int
    dilation: int
    before: int
    after: int

    @property
    def reach(self) -> int:
        return (self.kernel - 1) * self.dilation + 1


def filters_of(op: TfliteOperator) -> np.ndarray:
    """Returns the weights as output channel, row, column, input channel of the group."""
    data = op.inputs[1].data.reshape(op.inputs[1].shape).astype(np.int64)
    if op.kind == "DEPTHWISE_CONV_2D":
        return data.transpose(3, 1, 2, 0)
    return data if op.kind == "CONV_2D" else data.reshape(len(data), 1, 1, -1)


def axes_of(op: TfliteOperator) -> tuple[Axis, Axis]:
    """Returns rows and columns; a product of matrices has windows of one pixel."""
    if op.kind == "FULLY_CONNECTED":
        return (Axis(1, 1, 1, 0, 0),) * 2
    options, kernel = op.options, filters_of(op).shape[1:3]
    steps = ((options.strideH, options.dilationHFactor), (options.strideW, options.dilationWFactor))
    axes = []
    for number, (stride, dilation) in enumerate(steps):
        length, size = op.inputs[0].shape[number + 1], op.outputs[0].shape[number + 1]
        reach = (kernel[number] - 1) * dilation + 1
        padding = max(0, (size - 1) * stride + reach - length) if options.padding == SAME else 0
        axes.append(Axis(kernel[number], stride, dilation, padding // 2, padding - padding // 2))
    return tuple(axes)


def pictures_of(op: TfliteOperator, values: np.ndarray) -> np.ndarray:
    """Returns the input less its zero point, batches of all samples behind each other."""
    shape = (-1, 1, 1, op.inputs[1].shape[-1]) if op.kind == "FULLY_CONNECTED" else (-1, *op.inputs[0].shape[1:])
    return values.reshape(shape).astype(np.int64) - op.inputs[0].zero_point[0]


def sums(op: TfliteOperator, pictures: np.ndarray, rows: Axis, columns: Axis) -> np.ndarray:
    """Returns the sums of products of pictures with nothing around them but zeros, and the bias."""
    around = ((0, 0), (rows.before, rows.after), (columns.before, columns.after), (0, 0))
    pictures, weights = np.pad(pictures, around), filters_of(op)
    height = (pictures.shape[1] - rows.reach) // rows.stride + 1
    width = (pictures.shape[2] - columns.reach) // columns.stride + 1
    groups = pictures.shape[3] // weights.shape[3]
    split = weights.reshape(groups, -1, *weights.shape[1:])
    total = np.zeros((len(pictures), height, width, *split.shape[:2]), np.int64)
    for y, x in np.ndindex(rows.kernel, columns.kernel):
        below, right = y * rows.dilation, x * columns.dilation
        seen = pictures[:, below:, right:][:, :: rows.stride, :: columns.stride][:, :height, :width]
        seen = seen.reshape(*seen.shape[:3], groups, -1)
        total += np.einsum("nhwgi,goi->nhwgo", seen, split[:, :, y, x])
    bias = op.inputs[2] if len(op.inputs) > 2 else None
    total = total.reshape(*total.shape[:3], -1)
    return total if bias is None or bias.data is None else total + bias.data.astype(np.int64)


def multipliers(op: TfliteOperator) -> tuple[np.ndarray, np.ndarray]:
    """Returns the scale of each channel as an integer of 31 bits, and how many places the product is shifted by."""
    source, weights = op.inputs[0].scale[0], np.array(op.inputs[1].scale)
    product = source * weights
    if op.kind == "FULLY_CONNECTED":
        product = product.astype(np.float32).astype(np.float64)  # as TFLite-Micro and Vela have it
    fraction, exponent = np.frexp(product / op.outputs[0].scale[0])
    return np.round(fraction * (1 << 31)).astype(np.int64), 31 - exponent.astype(np.int64)


def twice_rounded(total: np.ndarray, scale: np.ndarray, places: np.ndarray) -> np.ndarray:
    """Returns sums times a scale, shifted: half up behind the product, then half away from zero."""
    first, rest = np.minimum(places, 31), np.maximum(places - 31, 0)
    product = (total * scale + (1 << first >> 1)) >> first
    return np.sign(product) * ((np.abs(product) + (1 << rest >> 1)) >> rest)


def once_rounded(total: np.ndarray, scale: np.ndarray, places: np.ndarray) -> np.ndarray:
    """Returns sums of 64 bits times the upper 16 bits of a scale, shifted: half up."""
    short = np.where(scale < 0x7FFF0000, (scale + (1 << 15)) >> 16, 0x7FFF)
    return (total * short + (1 << places - 17)) >> places - 16


def scaled(op: TfliteOperator, total: np.ndarray, chip: str) -> np.ndarray:
    """Returns what is stored of sums: Vela cuts the U85's scale where 16-bit inputs have a 32-bit bias."""
    scale, places = multipliers(op)
    if op.inputs[0].dtype != "int16":
        return stored(op, twice_rounded(total, scale, places))
    if narrow_bias(op):
        return stored(op, twice_rounded(total, scale & 0x7FFF if "u85" in chip else scale, places))
    return stored(op, once_rounded(total, scale, places))


def narrow_bias(op: TfliteOperator) -> bool:
    """Returns whether 16-bit inputs have a 32-bit bias."""
    bias = op.inputs[2] if len(op.inputs) > 2 else None
    return op.inputs[0].dtype == "int16" and bias is not None and bias.dtype == "int32"


def grouped_with_batches(op: TfliteOperator) -> bool:
    return op.kind == "CONV_2D" and op.inputs[0].shape[0] > 1 and op.inputs[0].shape[3] != op.inputs[1].shape[3]


def pixel_by_pixel(op: TfliteOperator) -> bool:
    """Returns whether every pixel of the output is made of one of the input."""
    return all((axis.kernel, axis.stride) == (1, 1) for axis in axes_of(op))


def square_of(pixels: int) -> tuple[int, int]:
    """Returns the two factors of a number that are nearest to each other, the smaller one first."""
    rows = next(n for n in range(math.isqrt(pixels), 0, -1) if pixels % n == 0)
    return rows, pixels // rows


def square_picture(op: TfliteOperator, values: np.ndarray, beyond: np.ndarray) -> np.ndarray:
    """Returns the picture that a convolution in groups reads: the pixels of all batches are taken for a square of them.

    Rows and columns of the first batch come again behind its end, then the memory behind each pixel; what lies behind
    the tensor is in `beyond`.
    """
    _, height, width, depth = op.inputs[0].shape
    y, x = (np.arange(length) for length in square_of(math.prod(op.outputs[0].shape[:3])))
    y, x = np.where(y < height, y, y - height), np.where(x < width, x, x - width)
    pixels = y[:, None] * width + x
    memory = np.concatenate([part.reshape(len(part), -1, depth) for part in (values, beyond)], axis=1)
    return memory[:, np.minimum(pixels, memory.shape[1] - 1)].astype(np.int64) - op.inputs[0].zero_point[0]


def stored(op: TfliteOperator, values: np.ndarray) -> np.ndarray:
    """Returns scaled sums with the zero point of the output, within its range."""
    out = op.outputs[0]
    limits, scale, zero_point = np.iinfo(out.dtype), out.scale[0], out.zero_point[0]
    low, high = (
        limit if math.isinf(limit) else zero_point + round(limit / scale)
        for limit in ACTIVATIONS[op.options.fusedActivationFunction]
    )
    return np.clip(values + zero_point, max(low, limits.min), min(high, limits.max)).astype(out.dtype)
