"""Elements of an axis that an Ethos-U takes, though its compiler does not let it: by number, in steps, reflected.

Each becomes slices and moves of axes, which are exact; only numbers in disorder are a product with zeros and ones.
"""

from __future__ import annotations

import math

import numpy as np

from anynpu.lowering.graph import Operator, int32
from anynpu.lowering.moves import MOST_JOINED
from anynpu.lowering.options import Concatenation, Gather, MirrorPad, StridedSlice
from anynpu.lowering.rewriting import Rewriting
from anynpu.tensors import Array

_ROWS_AND_COLUMNS = (-3, -2)
"""The axes, counted from the end, along which Vela pads and steps as it should."""
_MOST_CHOSEN = 1024
"""How many elements a product with zeros and ones may choose of what is walked backwards."""
_MOST_WEIGHTS = 1 << 22
"""How many zeros and ones such a product may have."""


def gather(at: Rewriting, operator: Operator) -> bool:
    """GATHER of stored numbers is a move of axes where it shuffles, slices where these are few, else a product."""
    source, result = operator.inputs[0], operator.outputs[0]
    numbers, options = at.graph.constant(operator.inputs[1]), operator.options
    if numbers is None or not numbers.ndim or at.tensors[source].dtype != "float32":
        return False
    if at.tensors[source].data is not None or not isinstance(options, Gather):
        return False
    place = options.axis % len(at.shape(source))
    size = at.shape(source)[place]
    flat = np.where(numbers < 0, numbers + size, numbers).astype(int).reshape(-1)
    taken = chosen(at, source, place, flat, result)
    if taken:
        at.give(operator, taken if numbers.ndim == 1 else at.reshape(taken, at.shape(result), f"{result}/axes"))
    return bool(taken)


def mirrored(at: Rewriting, operator: Operator) -> bool:
    """MIRROR_PAD of channels or batches, which Vela leaves out, is one of the columns of an image."""
    source, result, pads = operator.inputs[0], operator.outputs[0], at.graph.constant(operator.inputs[1])
    if pads is None or not isinstance(operator.options, MirrorPad):
        return False
    rank, tensor = len(at.shape(source)), source
    padded = [axis for axis in range(rank) if pads[axis].any()]
    if all(axis - rank in _ROWS_AND_COLUMNS for axis in padded):
        return False
    for axis in padded:
        columns, (_, rows, count, after) = _as_columns(at, tensor, axis, result)
        around = np.zeros((4, 2), np.int32)
        around[2] = pads[axis]
        inputs = (columns, at.store(around, f"{result}/pads"))
        longer = count + int(pads[axis].sum())
        wide = at.emit("MIRROR_PAD", inputs, (1, rows, longer, after), operator.options, f"{result}/padded{axis}")
        shape = at.shape(tensor)
        tensor = at.reshape(wide, (*shape[:axis], longer, *shape[axis + 1 :]), f"{result}/axis{axis}")
    at.give(operator, tensor)
    return True


def stepped(at: Rewriting, operator: Operator) -> bool:
    """STRIDED_SLICE of channels or batches steps over the columns of an image; one that walks backwards is a choice."""
    source, result, options = operator.inputs[0], operator.outputs[0], operator.options
    stored = [at.graph.constant(name) for name in operator.inputs[1:]]
    if any(array is None for array in stored) or not isinstance(options, StridedSlice) or options.shrink_axis_mask:
        return False
    begin, steps, rank = stored[0], stored[2], len(at.shape(source))
    assert begin is not None and steps is not None
    taken = [
        (0 if options.begin_mask >> axis & 1 and steps[axis] > 0 else int(begin[axis]) % size)
        + int(steps[axis]) * np.arange(count)
        for axis, (size, count) in enumerate(zip(at.shape(source), at.shape(result), strict=True))
    ]
    if all(steps[axis] == 1 or (steps[axis] > 1 and axis - rank in _ROWS_AND_COLUMNS) for axis in range(rank)):
        return False
    if any(steps[axis] < 0 and len(numbers) > _MOST_CHOSEN for axis, numbers in enumerate(taken)):
        return False
    tensor = source
    for axis, numbers in enumerate(taken):
        if np.array_equal(numbers, np.arange(at.shape(tensor)[axis])):
            continue
        if steps[axis] <= 1:
            tensor = chosen(at, tensor, axis, numbers, f"{result}/axis{axis}")
            continue
        columns, (_, rows, _, after) = _as_columns(at, tensor, axis, result)
        bounds = ((0, 0, int(numbers[0]), 0), (1, rows, int(numbers[-1]) + 1, after), (1, 1, int(steps[axis]), 1))
        inputs = (columns, *(at.store(int32(each), f"{result}/bound{axis}") for each in bounds))
        few = at.emit("STRIDED_SLICE", inputs, (1, rows, len(numbers), after), StridedSlice(), f"{result}/steps{axis}")
        shape = at.shape(tensor)
        tensor = at.reshape(few, (*shape[:axis], len(numbers), *shape[axis + 1 :]), f"{result}/axis{axis}")
    at.give(operator, tensor)
    return True


def _as_columns(at: Rewriting, tensor: str, axis: int, stem: str) -> tuple[str, tuple[int, ...]]:
    """Returns a tensor as one image whose columns are an axis, and its shape."""
    shape = at.shape(tensor)
    image = (1, math.prod(shape[:axis]), shape[axis], math.prod(shape[axis + 1 :]))
    return at.reshape(tensor, image, f"{stem}/columns{axis}"), image


def chosen(at: Rewriting, source: str, place: int, numbers: Array, result: str) -> str:
    """Returns elements of one axis by number: moved, sliced, or by a product; an empty name where that is too large."""
    shape = at.shape(source)
    size, before, after = shape[place], shape[:place], shape[place + 1 :]
    # Those of a matrix with `step` columns, column by column, are a transposition.
    steps = (n for n in range(2, size) if size % n == 0 and numbers.size == size)
    step = next((n for n in steps if np.array_equal(numbers, np.arange(size).reshape(-1, n).T.reshape(-1))), 0)
    if step:
        parts = at.reshape(source, (*before, size // step, step, *after), f"{result}/parts")
        order = [*range(place), place + 1, place, *range(place + 2, len(shape) + 1)]
        moved = at.transpose(parts, order, f"{result}/moved")
        return at.reshape(moved, (*before, size, *after), f"{result}/joined")
    runs = np.split(numbers, np.flatnonzero(np.diff(numbers) != 1) + 1)
    if len(runs) <= MOST_JOINED:
        pieces = []
        for number, run in enumerate(runs):
            begin = [int(run[0]) if axis == place else 0 for axis in range(len(shape))]
            extent = (*before, len(run), *after)
            bounds = [at.store(int32(each), f"{result}/bound{number}") for each in (begin, extent)]
            pieces.append(at.emit("SLICE", (source, *bounds), extent, None, f"{result}/piece{number}"))
        whole = (*before, len(numbers), *after)
        return at.emit("CONCATENATION", pieces, whole, Concatenation(axis=place), f"{result}/joined")
    unit = math.gcd(size, *(int(each) for run in runs for each in (run[0], len(run))))
    if unit > 1:  # whole rows are taken
        rows = at.reshape(source, (*before, size // unit, unit, *after), f"{result}/rows")
        taken = chosen(at, rows, place, numbers[::unit] // unit, f"{result}/taken")
        return taken and at.reshape(taken, (*before, len(numbers), *after), f"{result}/whole")
    if size * len(numbers) > _MOST_WEIGHTS:
        return ""
    order = [*(axis for axis in range(len(shape)) if axis != place), place]
    turned = at.transpose(source, order, f"{result}/turned")
    product = at.multiply(turned, np.eye(size)[numbers], f"{result}/chosen")
    return at.transpose(product, np.argsort(order).tolist(), f"{result}/back")
