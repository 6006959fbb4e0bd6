"""Reductions over axes, wherever these are stored."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from anynpu.lowering.graph import int32
from anynpu.lowering.lower import Lowering
from anynpu.lowering.operators.movement import sliced
from anynpu.lowering.options import Add, ArgMax, ArgMin, Cast, Concatenation, Mul, Reducer
from anynpu.lowering.table import Node, Refused, operator, required

_KINDS = {"ReduceMax": "REDUCE_MAX", "ReduceMin": "REDUCE_MIN"}
_OF_TRUTHS = {"ReduceMax": "LOGICAL_OR", "ReduceMin": "LOGICAL_AND"}
_OPTIONS = {"ADD": Add(), "MUL": Mul()}
_SUMS = ("ReduceSum", "ReduceL2", "ReduceSumSquare")


MOST_REDUCED = 4095
"""How many elements of one axis an Ethos-U takes the mean of."""


def reduced(at: Lowering, kind: str, tensor: str, places: list[int], stem: str) -> str:
    """Returns a reduction over stored axes, which stay with size one."""
    whole = at.tensors[tensor].shape
    shape = tuple(1 if place in places else size for place, size in enumerate(whole))
    rows = [size for place, size in enumerate(whole) if place not in places]
    length = math.prod(whole[len(rows) :])
    # A mean over a long axis is means over factors of its length, one after the other.
    parts, rest = list[int](), length
    while rest > MOST_REDUCED:
        parts.append(next((size for size in range(MOST_REDUCED, 1, -1) if rest % size == 0), rest))
        rest //= parts[-1]
    parts += [rest] if rest > 1 or not parts else []
    flattens = len(places) > 1 or len(whole) > 3 or len(parts) > 1
    if kind == "MEAN" and places == list(range(len(rows), len(whole))) and flattens:
        # The NPU takes the mean along the last of two axes, however many they are in the model.
        for part in parts:
            flat = at.reshape(tensor, (math.prod(rows) * length // part, part))
            length //= part
            tensor = reduced(at, kind, flat, [1], stem)
        return at.reshape(tensor, shape)
    return at.emit(kind, (tensor, at.store(int32(places), "axes")), shape, Reducer(True), stem)


def summed(at: Lowering, tensor: str, places: list[int], stem: str) -> str:
    """Returns the sum over stored axes as the mean times their size: LiteRT's SUM of quantised values rescales none."""
    if at.tensors[tensor].dtype == "int32":  # TFLite-Micro sums no whole numbers along an axis
        for place in places:
            tensor = in_halves(at, "ADD", tensor, place, stem)
        return tensor
    mean = reduced(at, "MEAN", tensor, places, stem)
    count = math.prod(at.tensors[tensor].shape[place] for place in places)
    return at.emit("MUL", (mean, at.value("count", count)), at.tensors[mean].shape, Mul(), stem)


def reduced_axes(at: Lowering, node: Node) -> list[int]:
    """Returns the axes of a reduction, an attribute in older opsets and an input in newer ones."""
    rank = at.rank(node.input(0))
    if "axes" in node.attributes:
        axes = node.integers("axes", [])
    elif node.input(1):
        axes = [int(axis) for axis in required(at.constant(node.input(1)), "the axes").reshape(-1)]
    else:
        axes = []
    if not axes and not int(node.get("noop_with_empty_axes", 0)):
        axes = list(range(rank))
    return sorted({axis % rank for axis in axes})


def in_halves(at: Lowering, kind: str, tensor: str, place: int, stem: str) -> str:
    """Returns the sum (ADD), product (MUL) or the like along a stored axis, which stays with size one: that of both
    halves, until one is left."""
    options = _OPTIONS.get(kind)
    odd: list[str] = []
    while (size := at.tensors[tensor].shape[place]) > 1:
        half = size // 2

        def part(start: int, length: int, whole: str = tensor) -> str:
            shape = [length if number == place else n for number, n in enumerate(at.tensors[whole].shape)]
            return sliced(at, whole, [start if number == place else 0 for number in range(len(shape))], shape, stem)

        if size % 2:
            odd.append(part(2 * half, 1))
        halves = part(0, half), part(half, half)
        tensor = at.emit(kind, halves, at.tensors[halves[0]].shape, options, stem)
    for each in odd:
        tensor = at.emit(kind, (tensor, each), at.tensors[each].shape, options, stem)
    return tensor


@operator("ReduceProd")
def product(at: Lowering, node: Node) -> None:
    """MUL of halves along each axis, which every runtime has in integers: TFLite-Micro and Ethos-U lack REDUCE_PROD."""
    name = node.input(0)
    axes, over = at.axes(name), reduced_axes(at, node)
    tensor = at.stored(name, axes)
    for axis in over:
        tensor = in_halves(at, "MUL", tensor, axes.index(axis), node.output)
    give_reduced(at, node.output, tensor, axes, over, bool(node.get("keepdims", 1)))


@operator("ReduceMean", "ReduceSum", "ReduceMax", "ReduceMin", "ReduceL2", "ReduceSumSquare")
def reduce(at: Lowering, node: Node) -> None:
    """MEAN, REDUCE_MAX or REDUCE_MIN over the axes where they are stored; a sum is the mean times their size."""
    name = node.input(0)
    axes, over = at.axes(name), reduced_axes(at, node)
    tensor = at.stored(name, axes)
    places = sorted(axes.index(axis) for axis in over)
    if at.tensors[tensor].dtype == "bool" and node.op in _OF_TRUTHS:  # no runtime has the largest truth value
        for place in places:
            tensor = in_halves(at, _OF_TRUTHS[node.op], tensor, place, node.output)
        give_reduced(at, node.output, tensor, axes, over, bool(node.get("keepdims", 1)))
        return
    if node.op in ("ReduceL2", "ReduceSumSquare"):
        tensor = at.emit("MUL", (tensor, tensor), at.tensors[tensor].shape, Mul(), node.output)
    if node.op in _SUMS:
        tensor = summed(at, tensor, places, node.output)
    else:
        tensor = reduced(at, _KINDS.get(node.op, "MEAN"), tensor, places, node.output)
    if node.op == "ReduceL2":
        tensor = at.emit("SQRT", (tensor,), at.tensors[tensor].shape, stem=node.output)
    give_reduced(at, node.output, tensor, axes, over, bool(node.get("keepdims", 1)))


def give_reduced(at: Lowering, output: str, tensor: str, axes: tuple[int, ...], over: list[int], keep: bool) -> None:
    """Gives a reduction with its axes kept as an ONNX result that keeps or drops them."""
    if keep:
        at.give(output, tensor, axes)
        return
    left = [axis for axis in axes if axis not in over]
    numbers = {axis: number for number, axis in enumerate(sorted(left))}
    shape = [size for size, axis in zip(at.tensors[tensor].shape, axes, strict=True) if axis not in over]
    at.give(output, at.reshape(tensor, shape), tuple(numbers[axis] for axis in left))


@operator("ArgMax", "ArgMin")
def arg(at: Lowering, node: Node) -> None:
    """ARG_MAX or ARG_MIN along the axis where it is stored, as 32-bit numbers; whole ones are compared in pairs."""
    if int(node.get("select_last_index", 0)):
        raise Refused("TFLite chooses the first of equal values, not the last")
    name = node.input(0)
    axes = at.axes(name)
    axis = int(node.get("axis", 0)) % len(axes)
    tensor, place = at.stored(name, axes), axes.index(axis)
    shape = tuple(size for number, size in enumerate(at.tensors[tensor].shape) if number != place)
    if at.tensors[tensor].dtype == "int32":  # as the end of a text, the largest of its numbers, is found
        order = (*(each for each in axes if each != axis), axis)
        result = _by_pairs(at, at.stored(name, order), node)
        give_reduced(at, node.output, result, order, [axis], bool(node.get("keepdims", 1)))
        return
    kind, options = ("ARG_MAX", ArgMax()) if node.op == "ArgMax" else ("ARG_MIN", ArgMin())
    inputs = (tensor, at.store(int32([place]).reshape(()), "axis"))
    result = at.emit(kind, inputs, shape, options, node.output, dtype="int32")
    kept = tuple(1 if number == place else size for number, size in enumerate(at.tensors[tensor].shape))
    give_reduced(at, node.output, at.reshape(result, kept), axes, [axis], bool(node.get("keepdims", 1)))


def _by_pairs(at: Lowering, tensor: str, node: Node) -> str:
    """Returns the place of the largest whole number along the last axis, or of the smallest, the first of equal ones.

    TFLite-Micro and Vela have ARG_MAX of 8 bits alone. Neighbours are compared, then those that were chosen.
    """
    *leading, size = at.tensors[tensor].shape
    wide = 1 << max(0, size - 1).bit_length()
    largest = node.op == "ArgMax"
    if wide > size:
        fill = np.full((*leading, wide - size), np.iinfo(np.int32).min if largest else np.iinfo(np.int32).max, np.int32)
        inputs = (tensor, at.store(fill, "fill"))
        tensor = at.emit("CONCATENATION", inputs, (*leading, wide), Concatenation(axis=len(leading)), node.output)
    numbers = np.broadcast_to(np.arange(wide, dtype=np.int32), (*leading, wide))
    places = ""
    while wide > 1:
        wide //= 2
        shape = (*leading, wide, 1)  # neighbours are compared: of equal numbers the first stays in front
        size_of = at.store(int32(shape), "size")
        begins = [at.store(int32((*(0 for _ in (*leading, wide)), begin)), "begin") for begin in (0, 1)]
        rows = [at.reshape(whole, (*leading, wide, 2)) for whole in (tensor, places) if whole]
        pairs = [[at.emit("SLICE", (row, begin, size_of), shape, stem=node.output) for begin in begins] for row in rows]
        if not places:
            pairs.append([at.store(numbers[..., begin::2, None], "places") for begin in (0, 1)])
        (first, second), (here, there) = pairs
        later = at.emit("GREATER" if largest else "LESS", (second, first), shape, stem=node.output, dtype="bool")
        sooner = at.emit("LOGICAL_NOT", (later,), shape, stem=node.output, dtype="bool")
        shares = [
            at.emit("CAST", (each,), shape, Cast("bool", "int32"), node.output, "int32") for each in (sooner, later)
        ]

        def chosen(pair: tuple[str, str], shape: Sequence[int] = shape, shares: Sequence[str] = shares) -> str:
            products = [at.emit("MUL", both, shape, Mul(), node.output) for both in zip(pair, shares, strict=True)]
            return at.emit("ADD", products, shape, Add(), node.output)

        tensor, places = chosen((first, second)), chosen((here, there))
    return at.reshape(places or at.store(numbers, "places"), (*leading, 1))
