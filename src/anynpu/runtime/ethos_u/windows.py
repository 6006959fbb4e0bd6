"""Kernels that slide over a feature map: geometry, padding, upscaling, and sums over windows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from anynpu.errors import IntegrityError
from anynpu.runtime.ethos_u.stream import Operation
from anynpu.tensors import Array

NEAREST, ZEROS = 1, 2
MAX_ELEMENTS = 1 << 28
CHUNK_BYTES = 1 << 26


def check_depth(op: Operation, expected: int) -> None:
    """Raises where an operation stores another number of channels than its input gives."""
    depth = op.register("OFM_DEPTH_M1") + 1
    if depth != expected:
        raise IntegrityError(f"{op.title}: it stores {depth} channels, and its input gives {expected}")


@dataclass(frozen=True)
class Kernel:
    """The window of a convolution or pooling and how it moves; pairs are down and across."""

    size: tuple[int, int]
    """How many elements are looked at."""
    stride: tuple[int, int]
    dilation: tuple[int, int]
    before: tuple[int, int]
    after: tuple[int, int]
    upscale: int
    part_kernel: bool

    def reach(self, ofm: tuple[int, int]) -> tuple[int, int]:
        """Returns how much of the padded input an output of that size needs."""
        spans = ((k - 1) * d + 1 for k, d in zip(self.size, self.dilation, strict=True))
        height, width = ((n - 1) * s + k for n, s, k in zip(ofm, self.stride, spans, strict=True))
        return height, width

    def ifm_size(self, ofm: tuple[int, int]) -> tuple[int, int]:
        """Returns height and width of the input: registers do not hold them."""
        sizes = []
        for reach, before, after in zip(self.reach(ofm), self.before, self.after, strict=True):
            size = reach - before - after
            sizes.append(-(-size // 2) if self.upscale else size)
        return sizes[0], sizes[1]


def kernel_of(op: Operation) -> Kernel:
    """Returns the kernel of an operation."""
    stride = op.register("KERNEL_STRIDE")
    down, across = 1 + (stride >> 4 & 1), 1 + (stride >> 3 & 1)
    return Kernel(
        size=(op.register("KERNEL_HEIGHT_M1") // down + 1, op.register("KERNEL_WIDTH_M1") // across + 1),
        stride=(1 + (stride >> 1 & 1) + 2 * (stride >> 9 & 1), 1 + (stride & 1) + 2 * (stride >> 6 & 1)),
        dilation=(down, across),
        before=(op.register("IFM_PAD_TOP"), op.register("IFM_PAD_LEFT")),
        after=(op.register("IFM_PAD_BOTTOM"), op.register("IFM_PAD_RIGHT")),
        upscale=op.register("IFM_UPSCALE"),
        part_kernel=bool(stride >> 2 & 1),
    )


def padded(op: Operation, values: Array, kernel: Kernel, ofm: tuple[int, int], fill: int) -> Array:
    """Returns the input as the windows see it: upscaled, with padding around it."""
    if kernel.upscale == NEAREST:
        values = values.repeat(2, axis=1).repeat(2, axis=2)
    elif kernel.upscale == ZEROS:
        spread = np.zeros((values.shape[0], values.shape[1] * 2, values.shape[2] * 2, values.shape[3]), values.dtype)
        spread[:, ::2, ::2] = values
        values = spread
    height, width = kernel.reach(ofm)
    if (height, width) == values.shape[1:3] and kernel.before == (0, 0):
        return values
    if values.shape[0] * height * width * values.shape[3] > MAX_ELEMENTS:
        raise IntegrityError(f"{op.title}: a window of {height} x {width} is beyond what an NPU has")
    whole = np.full((values.shape[0], height, width, values.shape[3]), fill, values.dtype)
    top, left = kernel.before
    inner = values[:, : max(height - top, 0), : max(width - left, 0)]
    whole[:, top : top + inner.shape[1], left : left + inner.shape[2]] = inner
    return whole


def taps(values: Array, kernel: Kernel, ofm: tuple[int, int]) -> Iterator[tuple[int, int, Array]]:
    """Returns, for each element of the kernel, what of the padded input it meets at each output position."""
    for y in range(kernel.size[0]):
        for x in range(kernel.size[1]):
            top, left = y * kernel.dilation[0], x * kernel.dilation[1]
            down, across = kernel.stride
            yield (
                y,
                x,
                values[:, top : top + (ofm[0] - 1) * down + 1 : down, left : left + (ofm[1] - 1) * across + 1 : across],
            )


def window_sums(values: Array, kernel: Kernel, ofm: tuple[int, int]) -> Array:
    """Returns the sum over each window of the padded input."""
    total = np.zeros((len(values), *ofm, values.shape[3]), np.int64)
    for _, _, seen in taps(values, kernel, ofm):
        total += seen
    return total


def convolve(values: Array, weights: Array, kernel: Kernel, ofm: tuple[int, int]) -> Array:
    """Returns the sums of a convolution: padded input (n, h, w, c) with weights (kh, kw, c, o), all floating point."""
    samples, depth, outs = len(values), values.shape[3], weights.shape[3]
    flat = weights.reshape(-1, outs)
    if kernel.size == (1, 1):
        (_, _, seen), *_ = taps(values, kernel, ofm)
        return np.ascontiguousarray(seen).reshape(-1, depth) @ flat
    columns = kernel.size[0] * kernel.size[1] * depth
    sums = np.empty((samples, ofm[0] * ofm[1], outs), weights.dtype)
    step = max(1, CHUNK_BYTES // max(1, ofm[0] * ofm[1] * columns * weights.itemsize))
    for first in range(0, samples, step):
        chunk = values[first : first + step]
        patches = np.empty((len(chunk), *ofm, kernel.size[0] * kernel.size[1], depth), weights.dtype)
        for y, x, seen in taps(chunk, kernel, ofm):
            patches[:, :, :, y * kernel.size[1] + x] = seen
        sums[first : first + step] = (patches.reshape(-1, columns) @ flat).reshape(len(chunk), -1, outs)
    return sums


def averages(total: Array, kernel: Kernel, size: tuple[int, int], values: Array) -> Array:
    """Returns sums divided by how many elements of each window are not padding, half rounded away from zero."""
    height, width = values.shape[1:3]
    inside = np.zeros((1, height, width, 1), np.int64)
    inside[:, kernel.before[0] : height - kernel.after[0], kernel.before[1] : width - kernel.after[1]] = 1
    count = np.maximum(window_sums(inside, kernel, size), 1)
    return np.asarray(np.sign(total) * ((np.abs(total) + count // 2) // count))
