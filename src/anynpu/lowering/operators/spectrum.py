"""Running sums and transforms, which are products with constant matrices."""

from __future__ import annotations

import numpy as np

from anynpu.lowering.graph import int32
from anynpu.lowering.lower import Lowering, plain
from anynpu.lowering.operators.linear import dense
from anynpu.lowering.options import Add, Conv2D
from anynpu.lowering.table import Node, Refused, operator, required
from anynpu.tensors import Array


@operator("CumSum")
def cumulative_sum(at: Lowering, node: Node) -> None:
    """FULLY_CONNECTED along the axis with a triangle of ones; whole numbers are added in doubling steps."""
    name = node.input(0)
    rank = at.rank(name)
    axis = int(required(at.constant(node.input(1)), "the axis").reshape(-1)[0]) % rank
    size = at.shape(name)[axis]
    triangle = np.tril(np.ones((size, size), np.float32), -1 if int(node.get("exclusive", 0)) else 0)
    weights = triangle.T if int(node.get("reverse", 0)) else triangle
    order = (*(each for each in at.axes(name) if each != axis), axis)
    if not at.dtypes[name].startswith("float"):
        at.give(node.output, _sums(at, at.stored(name, order), node), order)
        return
    at.give(node.output, dense(at, at.stored(name, order), weights, None, node.output), order)


def _sums(at: Lowering, tensor: str, node: Node) -> str:
    """Returns the cumulative sums along the last axis: each step adds what lies twice as far behind."""
    shape = at.tensors[tensor].shape
    size, backwards, exclusive = shape[-1], bool(node.get("reverse", 0)), bool(node.get("exclusive", 0))
    rest = [(0, 0)] * (len(shape) - 1)

    def shifted(name: str, count: int) -> str:
        """Moves everything by some places; zeros come in."""
        begin, end = (0, count) if backwards else (count, 0)
        pads = at.store(np.asarray([*rest, (begin, end)], np.int32), "pads")
        wide = at.emit("PAD", (name, pads), (*shape[:-1], size + count), stem=node.output)
        corner = at.store(int32([*(0 for _ in rest), count if backwards else 0]), "begin")
        return at.emit("SLICE", (wide, corner, at.store(int32(shape), "size")), shape, stem=node.output)

    if exclusive:
        tensor = shifted(tensor, 1)
    step = 1
    while step < size:
        tensor = at.emit("ADD", (tensor, shifted(tensor, step)), shape, Add(), node.output)
        step *= 2
    return tensor


def fourier(length: int, bins: int, inverse: bool) -> tuple[Array, Array]:
    """Returns the real and the imaginary part of the matrix of a transform, (bins, length)."""
    turns = np.outer(np.arange(bins), np.arange(length)) / length
    angle = 2 * np.pi * turns * (1 if inverse else -1)
    scale = 1 / length if inverse else 1.0
    return np.cos(angle) * scale, np.sin(angle) * scale


@operator("DFT")
def transform(at: Lowering, node: Node) -> None:
    """FULLY_CONNECTED along the axis with sines and cosines; complex numbers are the last axis."""
    name, rank = node.input(0), at.rank(node.input(0))
    axis = int(node.get("axis", 1))
    if node.input(2):
        axis = int(required(at.constant(node.input(2)), "the axis").reshape(-1)[0])
    elif "axis" not in node.attributes:
        axis = rank - 2
    axis %= rank
    size, parts = at.shape(name)[axis], at.shape(name)[-1]
    length = int(required(at.constant(node.input(1)), "the length").reshape(-1)[0]) if node.input(1) else size
    bins = at.shape(node.output)[axis]
    if int(node.get("inverse", 0)) and int(node.get("onesided", 0)):
        raise Refused("the inverse of a one-sided transform")
    real, imaginary = fourier(length, bins, bool(node.get("inverse", 0)))
    # What lies behind the length is cut off, and zeros that pad up to it add nothing.
    unread = np.zeros((bins, max(0, size - length)))
    real, imaginary = (np.hstack([part[:, :size], unread]) for part in (real, imaginary))
    blocks = [[real, -imaginary], [imaginary, real]] if parts == 2 else [[real], [imaginary]]
    # Rows: bins of the real, then of the imaginary part; columns: elements of the real, then of the imaginary part.
    weights = np.block(blocks).astype(np.float32)
    if at.shape(node.output)[-1] == 1:
        weights = weights[:bins]
    others = tuple(each for each in range(rank - 1) if each != axis)
    tensor = at.stored(name, (*others, rank - 1, axis))
    leading = at.tensors[tensor].shape[:-2]
    result = dense(at, at.reshape(tensor, (*leading, parts * size)), weights, None, node.output)
    result = at.reshape(result, (*leading, at.shape(node.output)[-1], bins))
    at.give(node.output, result, (*others, rank - 1, axis))


@operator("STFT")
def short_transform(at: Lowering, node: Node) -> None:
    """CONV_2D with windowed sines and cosines, a step apart."""
    name = node.input(0)
    if at.rank(name) == 3 and at.shape(name)[2] != 1:
        raise Refused("a complex signal")
    step = int(required(at.constant(node.input(1)), "the step").reshape(-1)[0])
    window = required(at.constant(node.input(2)), "the window") if node.input(2) else None
    length = int(required(at.constant(node.input(3)), "the length").reshape(-1)[0]) if node.input(3) else 0
    length = length or (0 if window is None else window.size)
    batch, signal = at.shape(name)[:2]
    _, frames, bins, _ = at.shape(node.output)
    if bins != (length // 2 + 1 if int(node.get("onesided", 1)) else length):
        raise Refused("the shape of its result is not known without a frame length")
    weighing = np.ones(length) if window is None else window.astype(np.float64)
    kernel = np.stack(fourier(length, bins, inverse=False), axis=1) * weighing  # (bins, 2, length)
    weights = at.store(kernel.reshape(2 * bins, 1, length, 1).astype(np.float32), f"{node.output}/waves")
    row = at.reshape(at.stored(name, plain(at.rank(name))), (batch, 1, signal, 1))
    inputs = (row, weights, at.store(np.zeros(2 * bins, np.float32), f"{node.output}/bias"))
    result = at.emit("CONV_2D", inputs, (batch, 1, frames, 2 * bins), Conv2D(stride_w=step), node.output)
    at.give(node.output, at.reshape(result, (batch, frames, bins, 2)))
