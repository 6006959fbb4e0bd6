"""Operators that choose elements by number or by condition."""

from __future__ import annotations

import math

import numpy as np

from anynpu.lowering.graph import int32
from anynpu.lowering.lower import Lowering, plain
from anynpu.lowering.operators.linear import dense
from anynpu.lowering.operators.movement import joined, sliced
from anynpu.lowering.options import Add, ArgMax, Cast, Gather, Mul, Options, Reducer, Sub, TopKV2
from anynpu.lowering.table import Node, Refused, operator, required
from anynpu.tensors import Array

MOST_CHOSEN = 64
"""How many of the largest numbers are found one by one."""
_BELOW = 0.02
"""How far below the smallest number one is put that was found, as a part of what they span: five of 255 steps."""
_LEAST_STEP = 1e-6
"""The same where all numbers are equal: float32 tells it from numbers up to 8, and to integers it is nothing."""


@operator("Gather")
def gather(at: Lowering, node: Node) -> None:
    """GATHER along the axis; a SLICE where the numbers are constant and follow each other."""
    data, numbers = node.input(0), node.input(1)
    rank = at.rank(data)
    axis = int(node.get("axis", 0)) % rank
    chosen = at.constant(numbers)
    if _reads_one_number(at, node):
        return
    table = at.constant(data)
    if chosen is not None and table is not None and node.output not in at.results:
        at.constants[node.output] = np.take(table, chosen, axis)
        return
    if chosen is None:
        # The axis goes in front: an Ethos-U85 gathers along the first one alone
        order, more = (axis, *(each for each in range(rank) if each != axis)), at.rank(numbers)
        inputs = (at.stored(data, order), at.stored(numbers, plain(more)))
        held = at.tensors[inputs[0]]
        extent = (*at.shape(numbers), *held.shape[1:])
        tensor = at.emit("GATHER", inputs, extent, Gather(0), node.output, held.dtype)
        rest = (each if each < axis else each + more - 1 for each in order[1:])
        at.give(node.output, tensor, (*range(axis, axis + more), *rest))
        return
    size = at.shape(data)[axis]
    places = np.where(chosen < 0, chosen + size, chosen)
    axes = at.axes(data)
    tensor, place = at.stored(data, axes), axes.index(axis)
    shape = list(at.tensors[tensor].shape)
    flat = places.reshape(-1)
    shape[place] = flat.size
    if np.array_equal(flat, np.arange(flat[0], flat[0] + flat.size)):
        begin = [int(flat[0]) if number == place else 0 for number in range(rank)]
        tensor = sliced(at, tensor, begin, shape, node.output)
    else:
        tensor = at.emit("GATHER", (tensor, at.store(int32(flat), numbers)), shape, Gather(place), node.output)
    # What was chosen along one axis, which ONNX replaces by the axes of the numbers
    if chosen.ndim == 1:
        at.give(node.output, tensor, axes)
        return
    new: list[int] = []
    for each in axes:
        new += range(axis, axis + chosen.ndim) if each == axis else [each if each < axis else each + chosen.ndim - 1]
    shape = [at.shape(node.output)[each] for each in new]
    at.give(node.output, at.reshape(tensor, shape), tuple(new))


def _reads_one_number(at: Lowering, node: Node) -> bool:
    """Gives a constant where a table holds one number everywhere, as the stored types of a model's tokens do."""
    table = at.constant(node.input(0))
    if table is None or not table.size or np.any(table != table.flat[0]) or node.output in at.results:
        return False
    at.constants[node.output] = np.full(at.shape(node.output), table.flat[0], table.dtype)
    return True


def picked(at: Lowering, tensors: list[str], numbers: Array, output: str) -> None:
    """Gives the elements with the given numbers of tensors that lie one behind the other; parts in a row are sliced."""
    at.give(output, at.reshape(_picked(at, tensors, numbers, output), at.shape(output)))


def _picked(at: Lowering, tensors: list[str], numbers: Array, output: str) -> str:
    """Returns them in a row."""
    flat = [at.reshape(tensor, (at.tensors[tensor].size,)) for tensor in tensors]
    whole = joined(at, flat, 0, output)
    chosen = numbers.reshape(-1)
    if np.array_equal(chosen, np.arange(chosen[0], chosen[0] + chosen.size)):
        return sliced(at, whole, [int(chosen[0])], [chosen.size], output)
    return at.emit("GATHER", (whole, at.store(int32(chosen), f"{output}/numbers")), (chosen.size,), Gather(0), output)


def _numbered(at: Lowering, name: str) -> Array:
    """Returns the number of each element of an ONNX tensor."""
    shape = at.shape(name)
    return np.arange(int(np.prod(shape))).reshape(shape)


@operator("GatherElements", "GatherND")
def gather_elements(at: Lowering, node: Node) -> None:
    """GATHER from the flat tensor, or of rows whose numbers are computed."""
    data = node.input(0)
    if _reads_one_number(at, node):
        return
    if node.op == "GatherElements" and at.constant(node.input(1)) is None:
        _gather_computed(at, node)
        return
    if at.constant(node.input(1)) is None and not int(node.get("batch_dims", 0)):
        _rows_computed(at, node)
        return
    numbers, indices = _numbered(at, data), required(at.constant(node.input(1)), "where it reads")
    if node.op == "GatherElements":
        axis = int(node.get("axis", 0)) % at.rank(data)
        chosen = np.take_along_axis(numbers, np.where(indices < 0, indices + numbers.shape[axis], indices), axis)
    elif int(node.get("batch_dims", 0)):
        raise Refused("batch_dims")
    else:
        chosen = numbers[tuple(np.moveaxis(indices, -1, 0))]
    picked(at, [at.stored(data, plain(at.rank(data)))], chosen, node.output)


def _rows_computed(at: Lowering, node: Node) -> None:
    """Gives the rows whose places are computed: the numbers of a place times the strides of its axes, added up."""
    data, places = node.input(0), at.stored(node.input(1), plain(at.rank(node.input(1))))
    *leading, count = at.tensors[places].shape
    sizes, rest = at.shape(data)[:count], at.shape(data)[count:]
    row = None
    for axis in (axis for axis, size in enumerate(sizes) if size > 1):
        bounds = [at.store(int32(each), "bound") for each in ((*(0 for _ in leading), axis), (*leading, 1))]
        column = at.emit("SLICE", (places, *bounds), (*leading, 1), stem=f"{node.output}/place")
        if stride := math.prod(sizes[axis + 1 :]) - 1:
            column = at.emit(
                "MUL", (column, at.store(np.asarray(stride + 1, np.int32), "stride")), (*leading, 1), Mul()
            )
        row = column if row is None else at.emit("ADD", (row, column), (*leading, 1), Add())
    held = at.stored(data, plain(at.rank(data)))
    if row is None:  # there is one place alone
        at.give(node.output, at.reshape(held, at.shape(node.output)))
        return
    table = at.reshape(held, (math.prod(sizes), *rest))
    inputs = table, at.reshape(row, leading)
    at.give(node.output, at.emit("GATHER", inputs, (*leading, *rest), Gather(0), node.output))


def _gather_computed(at: Lowering, node: Node) -> None:
    """Gives the elements whose place along the axis is computed: its number times the stride, plus where its row is."""
    data, shape = node.input(0), at.shape(node.output)
    axis = int(node.get("axis", 0)) % at.rank(data)
    numbers = at.stored(node.input(1), plain(len(shape)))
    if at.tensors[numbers].dtype != "int32":
        kind = at.tensors[numbers].dtype
        numbers = at.emit("CAST", (numbers,), shape, Cast(kind, "int32"), dtype="int32")
    table = at.constant(data)
    row = None if table is None else np.moveaxis(table, axis, 0).reshape(table.shape[axis], -1)
    if row is not None and np.all(row == row[:, :1]):
        flat = at.store(row[:, 0], data)
    else:
        held = at.stored(data, plain(at.rank(data)))
        flat = at.reshape(held, (at.tensors[held].size,))
        first = _numbered(at, data)[tuple(slice(1 if each == axis else size) for each, size in enumerate(shape))]
        stride = math.prod(at.shape(data)[axis + 1 :])
        if stride != 1:
            numbers = at.emit("MUL", (numbers, at.store(np.asarray(stride, np.int32), "stride")), shape, Mul())
        if np.any(first):
            rows = at.store(int32(np.broadcast_to(first, shape)), f"{node.output}/rows")
            numbers = at.emit("ADD", (numbers, rows), shape, Add())
    dtype = at.tensors[flat].dtype
    at.give(node.output, at.emit("GATHER", (flat, numbers), shape, Gather(0), node.output, dtype))


_REDUCTIONS: dict[str, tuple[str, Options | None, float | None]] = {
    "add": ("ADD", Add(), 0.0),
    "mul": ("MUL", Mul(), 1.0),
    "max": ("MAXIMUM", None, None),
    "min": ("MINIMUM", None, None),
}
"""The operator of each reduction, and what stands where nothing is written; None for the data itself."""


@operator("ScatterElements", "ScatterND", "Scatter")
def scatter(at: Lowering, node: Node) -> None:
    """SLICE and CONCATENATION around a stored block, GATHER for other stored places; a product for added rows."""
    data, updates = node.input(0), node.input(2)
    indices = required(at.constant(node.input(1)), "where it writes")
    if node.op == "ScatterND" and node.get("reduction", "none") == "add" and indices.shape[-1] < at.rank(data):
        _added(at, node, indices)
        return
    numbers, new = _numbered(at, data), _numbered(at, updates) + int(np.prod(at.shape(data)))
    chosen = numbers.copy()
    if node.op == "ScatterND":
        chosen[tuple(np.moveaxis(indices, -1, 0))] = new
    else:
        places = np.indices(indices.shape)
        places[int(node.get("axis", 0)) % at.rank(data)] = indices
        chosen[tuple(places)] = new
    tensors = [at.stored(name, plain(at.rank(name))) for name in (data, updates)]
    reduction = node.get("reduction", "none")
    if reduction == "none":
        if (start := block_of(chosen, numbers, new)) is not None:
            at.give(node.output, around(at, tensors[0], tensors[1], start, chosen != numbers, node.output))
        else:
            picked(at, tensors, chosen, node.output)
        return
    if np.count_nonzero(chosen != numbers) < new.size:
        if node.op != "ScatterND" and _met(at, node, indices):
            return
        raise Refused(f"reduction {reduction} of several updates of one place")
    kind, options, idle = _REDUCTIONS[reduction]
    shape, dtype = at.tensors[tensors[0]].shape, at.tensors[tensors[0]].dtype
    others = tensors[0] if idle is None else at.store(np.full(shape, idle, dtype), f"{node.output}/idle")
    spread = at.reshape(_picked(at, [others, tensors[1]], chosen, f"{node.output}/updates"), shape)
    at.give(node.output, at.emit(kind, (tensors[0], spread), shape, options, node.output))


def _met(at: Lowering, node: Node, indices: Array) -> bool:
    """Gives the data plus whole rows of which several meet at one stored place, or the largest of all rows; tells
    whether it could."""
    data, updates, reduction = node.input(0), node.input(2), node.get("reduction", "none")
    shape, count = at.shape(data), indices.shape[int(node.get("axis", 0))]
    axis = int(node.get("axis", 0)) % len(shape)
    others, along = [each for each in range(len(shape)) if each != axis], np.moveaxis(indices, axis, -1)
    if along.shape[:-1] != tuple(shape[each] for each in others) or np.any(along != along.reshape(-1, count)[0]):
        return False
    order, extent = (*others, axis), (*along.shape[:-1], shape[axis])
    if reduction == "add":
        weights = np.zeros((shape[axis], count), np.float32)
        weights[along.reshape(-1, count)[0], np.arange(count)] = 1.0  # a negative place counts from the end
        rows = at.reshape(at.stored(updates, order), (along.size // count, count))
        added = at.reshape(dense(at, rows, weights, None, f"{node.output}/rows"), extent)
        at.give(node.output, at.emit("ADD", (at.stored(data, order), added), extent, Add(), node.output), order)
        return True
    if reduction not in ("max", "min") or shape[axis] > 1:
        return False
    kind, along_axis = f"REDUCE_{reduction.upper()}", at.store(int32([axis]), f"{node.output}/axis")
    inputs = (at.stored(updates, plain(len(shape))), along_axis)
    best = at.emit(kind, inputs, shape, Reducer(keep_dims=True), f"{node.output}/best")
    old = at.stored(data, plain(len(shape)))
    at.give(node.output, at.emit(_REDUCTIONS[reduction][0], (old, best), shape, None, node.output))
    return True


def block_of(chosen: Array, numbers: Array, new: Array) -> list[int] | None:
    """Returns where a block begins that all updates fill in their order; None where they lie otherwise."""
    places = np.nonzero(chosen != numbers)
    if not chosen.ndim or not new.size or len(places[0]) != new.size:
        return None
    box = tuple(slice(int(each.min()), int(each.max()) + 1) for each in places)
    return [part.start for part in box] if np.array_equal(chosen[box].reshape(-1), new.reshape(-1)) else None


def around(at: Lowering, data: str, updates: str, start: list[int], written: Array, stem: str) -> str:
    """Returns a tensor in which a block is replaced: what lies before and behind it along each axis is sliced off."""
    whole = at.tensors[data].shape
    sizes = [int(np.ptp(each)) + 1 for each in np.nonzero(written)]
    result = at.reshape(updates, sizes)
    for axis in reversed(range(len(whole))):
        parts = [result]
        for place, begin, size in ((0, 0, start[axis]), (2, start[axis] + sizes[axis], -1)):
            size = whole[axis] - begin if size < 0 else size
            if size:
                corner = [*start[:axis], begin, *(0 for _ in whole[axis + 1 :])]
                extent = [*sizes[:axis], size, *whole[axis + 1 :]]
                if (array := at.tensors[data].data) is None:
                    kept = sliced(at, data, corner, extent, f"{stem}/kept")
                else:
                    part = tuple(slice(low, low + count) for low, count in zip(corner, extent, strict=True))
                    kept = at.store(np.ascontiguousarray(array[part]), f"{stem}/kept")
                parts.insert(place, kept)
        result = joined(at, parts, axis, f"{stem}/whole")
    return result


def _added(at: Lowering, node: Node, indices: Array) -> None:
    """Gives the data plus rows at stored places, several at one place or none."""
    data, updates, depth = node.input(0), node.input(2), indices.shape[-1]
    leading, count = at.shape(data)[:depth], math.prod(indices.shape[:-1])
    wrapped = np.where(indices < 0, indices + np.asarray(leading), indices).reshape(count, depth)
    places = np.ravel_multi_index(tuple(wrapped.T), leading)
    weights = np.zeros((math.prod(leading), count), np.float32)
    weights[places, np.arange(count)] = 1.0
    before = indices.ndim - 1
    turned = (*range(before, at.rank(updates)), *range(before))
    rows = at.reshape(at.stored(updates, turned), (math.prod(at.shape(data)[depth:]), count))
    axes = (*range(depth, at.rank(data)), *range(depth))
    old = at.stored(data, axes)
    shape = at.tensors[old].shape
    added = at.reshape(dense(at, rows, weights, None, f"{node.output}/rows"), shape)
    at.give(node.output, at.emit("ADD", (old, added), shape, Add(), node.output), axes)


@operator("OneHot")
def one_hot(at: Lowering, node: Node) -> None:
    """GATHER of the rows of a table."""
    depth = int(required(at.constant(node.input(1)), "the depth").reshape(-1)[0])
    off, on = required(at.constant(node.input(2)), "the values").astype(np.float32).reshape(-1)
    rank = at.rank(node.output)
    axis = int(node.get("axis", -1)) % rank
    axes = (*(each for each in range(rank) if each != axis), axis)
    table = at.store(np.where(np.eye(depth), on, off).astype(np.float32), f"{node.output}/rows")
    numbers = at.stored(node.input(0), plain(rank - 1))
    kind = at.tensors[numbers].dtype
    if kind != "int32":
        numbers = at.emit("CAST", (numbers,), at.tensors[numbers].shape, Cast(kind, "int32"), dtype="int32")
    shape = [at.shape(node.output)[each] for each in axes]
    at.give(node.output, at.emit("GATHER", (table, numbers), shape, Gather(0), node.output, "float32"), axes)


@operator("TopK")
def top_k(at: Lowering, node: Node) -> None:
    """The largest one by one, TOPK_V2 where these are many; the smallest as the largest of the negative."""
    count = int(required(at.constant(node.input(1)), "the count").reshape(-1)[0])
    name = node.input(0)
    axis = int(node.get("axis", -1)) % at.rank(name)
    axes = (*(each for each in range(at.rank(name)) if each != axis), axis)
    tensor = at.stored(name, axes)
    smallest = not int(node.get("largest", 1))
    minus = at.value("minus", -1, tensor)
    if smallest:
        tensor = at.emit("MUL", (tensor, minus), at.tensors[tensor].shape, Mul(), name)
    shape = (*at.tensors[tensor].shape[:-1], count)
    if count <= MOST_CHOSEN and at.tensors[tensor].dtype == "float32":
        values, numbers = _one_by_one(at, tensor, count, node.output)
    else:
        inputs = (tensor, at.store(int32([count]).reshape(()), "count"))
        values, numbers = at.emit_two("TOPK_V2", inputs, shape, TopKV2(), (node.outputs[0], node.outputs[1]), "int32")
    if smallest:
        values = at.emit("MUL", (values, minus), shape, Mul(), node.outputs[0])
    at.give(node.outputs[0], values, axes)
    at.give(node.outputs[1], numbers, axes)


def _one_by_one(at: Lowering, tensor: str, count: int, stem: str) -> tuple[str, str]:
    """Returns the largest numbers of each row and their places: one is found, and put below all others for the next.

    Microcontrollers and NPUs have no TOPK_V2, but kernels for each of these steps.
    """
    shape = at.tensors[tensor].shape
    rows, last = shape[:-1], at.store(int32([len(shape) - 1]), "axis")
    # The ends of all rows: the numbers of a row that spans less than a step of the others stay apart too.
    ends, single = [], (1,) * len(shape)
    for kind in ("REDUCE_MAX", "REDUCE_MIN"):
        end = at.emit(kind, (tensor, last), (*rows, 1), Reducer(True), f"{stem}/end")
        for place, size in enumerate(rows):
            if size > 1:
                sizes = (*single[: place + 1], *rows[place + 1 :], 1)
                end = at.emit(kind, (end, at.store(int32([place]), "axis")), sizes, Reducer(True), f"{stem}/end")
        ends.append(end)
    span = at.emit("SUB", (ends[0], ends[1]), single, Sub(), f"{stem}/span")
    step = at.emit("MUL", (span, at.value("part", _BELOW)), single, Mul(), f"{stem}/part")
    step = at.emit("MAXIMUM", (step, at.value("least", _LEAST_STEP)), single, None, f"{stem}/step")
    below = at.emit("SUB", (ends[1], step), single, Sub(), f"{stem}/below")
    places = at.store(int32(np.arange(shape[-1])), f"{stem}/places")
    axis, values, numbers = at.store(int32([len(shape) - 1]).reshape(()), "axis"), list[str](), list[str]()
    for turn in range(count):
        values.append(at.emit("REDUCE_MAX", (tensor, last), (*rows, 1), Reducer(True), f"{stem}/value"))
        number = at.emit("ARG_MAX", (tensor, axis), rows, ArgMax(), f"{stem}/number", "int32")
        numbers.append(at.reshape(number, (*rows, 1)))
        if turn + 1 < count:
            here = at.emit("EQUAL", (numbers[-1], places), shape, None, f"{stem}/here", "bool")
            tensor = at.emit("SELECT_V2", (here, below, tensor), shape, None, f"{stem}/rest", at.tensors[tensor].dtype)
    return joined(at, values, len(rows), stem), joined(at, numbers, len(rows), f"{stem}/numbers")


@operator("EyeLike")
def eye(at: Lowering, node: Node) -> None:
    """A constant: nothing but the shape of the input counts."""
    rows, columns = at.shape(node.input(0))
    at.constants[node.output] = np.eye(rows, columns, int(node.get("k", 0)), at.dtypes[node.output])


@operator("Trilu")
def trilu(at: Lowering, node: Node) -> None:
    """MUL by a mask of zeros and ones."""
    shape = at.shape(node.output)
    k = int(required(at.constant(node.input(1)), "the diagonal").reshape(-1)[0]) if node.input(1) else 0
    ones = np.ones(shape[-2:], np.float32)
    mask = np.triu(ones, k) if int(node.get("upper", 1)) else np.tril(ones, k)
    tensor = at.stored(node.input(0), plain(len(shape)))
    stored = at.store(mask.astype(at.tensors[tensor].dtype), f"{node.output}/mask")
    result = at.emit("MUL", (tensor, stored), shape, Mul(), node.output)
    at.give(node.output, result)


@operator("Hardmax")
def hardmax(at: Lowering, node: Node) -> None:
    """Where each value is the largest along the axis: ARG_MAX, then GATHER of the rows of a table."""
    name = node.input(0)
    axis = int(node.get("axis", -1)) % at.rank(name)
    axes = (*(each for each in range(at.rank(name)) if each != axis), axis)
    tensor = at.stored(name, axes)
    shape = at.tensors[tensor].shape
    place = at.store(int32([len(axes) - 1]).reshape(()), "axis")
    numbers = at.emit("ARG_MAX", (tensor, place), shape[:-1], ArgMax(), node.output, dtype="int32")
    table = at.store(np.eye(shape[-1], dtype=np.float32), f"{node.output}/rows")
    at.give(node.output, at.emit("GATHER", (table, numbers), shape, Gather(0), node.output, "float32"), axes)
