"""Operators that move values and compute nothing."""

from __future__ import annotations

import math

import numpy as np

from anynpu.lowering.graph import Operator, Tensor, int32
from anynpu.lowering.lower import Lowering, plain
from anynpu.lowering.moves import MOST_JOINED
from anynpu.lowering.options import Concatenation, MirrorPad, Split, StridedSlice
from anynpu.lowering.table import Node, Refused, operator, required


@operator("Transpose")
def transpose(at: Lowering, node: Node) -> None:
    """Nothing: the result is the input seen with its axes in another order."""
    name = node.input(0)
    rank = at.rank(name)
    order = node.integers("perm", list(reversed(range(rank))))
    view_axes = tuple(order.index(axis) for axis in at.axes(name))
    at.give(node.output, at.stored(name, at.axes(name)), view_axes)


@operator("Reshape", "Flatten", "Squeeze", "Unsqueeze")
def reshape(at: Lowering, node: Node) -> None:
    """RESHAPE in the order in which the input is stored, where the axes it joins lie together; TRANSPOSE otherwise."""
    name, output = node.input(0), node.output
    # Runs of old axes with the runs of new axes that hold the same elements
    before = at.shape(name)
    after = at.shape(output)
    groups: list[tuple[list[int], list[int]]] = []
    i = j = 0
    while i < len(before) or j < len(after):
        old, new = [], []
        if i < len(before):
            old.append(i)
            i += 1
        if j < len(after):
            new.append(j)
            j += 1
        while math.prod(before[a] for a in old) != math.prod(after[a] for a in new):
            if math.prod(before[a] for a in old) < math.prod(after[a] for a in new):
                old.append(i)
                i += 1
            else:
                new.append(j)
                j += 1
        groups.append((old, new))
    # The stored order with the axes of each run together and in the order of ONNX
    run_of = {axis: number for number, (run, _) in enumerate(groups) for axis in run}
    order = tuple(axis for n in dict.fromkeys(run_of[axis] for axis in at.axes(name)) for axis in groups[n][0])
    tensor = at.stored(name, order)
    first = {old[0]: new for old, new in groups if old}
    loose = [axis for old, new in groups if not old for axis in new]
    axes: list[int] = []
    for axis in order:
        axes += first.get(axis, [])
    axes = loose + axes
    shape = [at.shape(output)[axis] for axis in axes]
    at.give(output, at.reshape(tensor, shape, output), tuple(axes))


@operator("Concat")
def concat(at: Lowering, node: Node) -> None:
    """CONCATENATION along the axis where it is stored."""
    from anynpu.lowering.operators.arithmetic import common_axes

    shape = at.shape(node.output)
    axes = common_axes(at, node.inputs, len(shape))
    axis = int(node.get("axis", 0)) % len(shape)
    tensors = [at.stored(name, axes) for name in node.inputs]
    at.give(node.output, joined(at, tensors, axes.index(axis), node.output), axes)


def joined(at: Lowering, tensors: list[str], place: int, stem: str) -> str:
    """Returns a CONCATENATION along a stored axis; of more tensors than TFLite-Micro takes, one of several."""
    while len(tensors) > 1:
        parts = [tensors[start : start + MOST_JOINED] for start in range(0, len(tensors), MOST_JOINED)]
        tensors = []
        for part in parts:
            shape = list(at.tensors[part[0]].shape)
            shape[place] = sum(at.tensors[name].shape[place] for name in part)
            whole = len(part) == 1
            tensors.append(part[0] if whole else at.emit("CONCATENATION", part, shape, Concatenation(axis=place), stem))
    return tensors[0]


@operator("Split")
def split(at: Lowering, node: Node) -> None:
    """SPLIT into equal parts, otherwise a SLICE for each part that is read."""
    name = node.input(0)
    axes = at.axes(name)
    axis = int(node.get("axis", 0)) % len(axes)
    tensor, place = at.stored(name, axes), axes.index(axis)
    sizes = [at.shape(output)[axis] for output in node.outputs]
    whole = at.tensors[tensor].shape
    if len(set(sizes)) == 1 and len(sizes) > 1:
        part = tuple(sizes[0] if number == place else size for number, size in enumerate(whole))
        names = []
        for output in node.outputs:
            free = at.free(output)
            at.tensors[free] = Tensor(free, part, at.tensors[tensor].dtype)
            names.append(free)
            at.give(output, free, axes)
        inputs = (at.store(int32([place]).reshape(()), "axis"), tensor)
        at.operators.append(Operator("SPLIT", inputs, tuple(names), Split(len(names))))
        return
    start = 0
    for output, size in zip(node.outputs, sizes, strict=True):
        if at.reads[output]:
            begin = [start if number == place else 0 for number in range(len(whole))]
            extent = [size if number == place else each for number, each in enumerate(whole)]
            at.give(output, sliced(at, tensor, begin, extent, output), axes)
        start += size


def sliced(at: Lowering, tensor: str, begin: list[int], size: list[int], stem: str) -> str:
    """Returns a SLICE, or the tensor itself where nothing is cut."""
    if tuple(size) == at.tensors[tensor].shape:
        return tensor
    inputs = (tensor, at.store(int32(begin), "begin"), at.store(int32(size), "size"))
    return at.emit("SLICE", inputs, size, stem=stem)


@operator("Slice")
def slice_(at: Lowering, node: Node) -> None:
    """SLICE, or STRIDED_SLICE where it steps over elements or walks backwards."""
    name = node.input(0)
    shape, axes = at.shape(name), at.axes(name)
    if "starts" in node.attributes:
        starts, ends = node.integers("starts", []), node.integers("ends", [])
        over, steps = node.integers("axes", list(range(len(starts)))), [1] * len(starts)
    else:
        starts, ends, over, steps = (
            [int(v) for v in required(at.constant(each), "where it cuts").reshape(-1)] if each else []
            for each in (node.input(place) for place in range(1, 5))
        )
        over, steps = over or list(range(len(starts))), steps or [1] * len(starts)
    ranges = [range(size) for size in shape]
    for start, end, axis, step in zip(starts, ends, (axis % len(shape) for axis in over), steps, strict=True):
        ranges[axis] = range(shape[axis])[slice(start, end if end > -(2**31) else None, step)]
    ordered = [ranges[axis] for axis in axes]
    tensor, size = at.stored(name, axes), [len(each) for each in ordered]
    if all(each.step == 1 for each in ordered):
        at.give(node.output, sliced(at, tensor, [each.start for each in ordered], size, node.output), axes)
        return
    mask = sum(1 << place for place, each in enumerate(ordered) if each.step < 0 and each[-1] + each.step < 0)
    inputs = [tensor]
    for stem, values in (
        ("begin", [each.start for each in ordered]),
        ("end", [max(each.stop, 0) for each in ordered]),
        ("strides", [each.step for each in ordered]),
    ):
        inputs.append(at.store(int32(values), stem))
    at.give(node.output, at.emit("STRIDED_SLICE", inputs, size, StridedSlice(end_mask=mask), node.output), axes)


@operator("Pad")
def pad(at: Lowering, node: Node) -> None:
    """PAD with zeros, PADV2 with another value, MIRROR_PAD for reflections; pads below zero are a SLICE."""
    name = node.input(0)
    axes, rank = at.axes(name), at.rank(name)
    mode = node.get("mode", "constant")
    pads = node.integers("pads", []) if "pads" in node.attributes else None
    if pads is None:
        pads = [int(v) for v in required(at.constant(node.input(1)), "the pads").reshape(-1)]
    over = list(range(rank))
    if node.input(3):
        over = [int(a) % rank for a in required(at.constant(node.input(3)), "the axes").reshape(-1)]
    begin, end = [0] * rank, [0] * rank
    for number, axis in enumerate(over):
        begin[axis], end[axis] = pads[number], pads[number + len(over)]
    value = float(node.get("value", 0.0))
    if node.input(2):
        value = float(required(at.constant(node.input(2)), "the value").reshape(-1)[0])
    begin, end = [begin[axis] for axis in axes], [end[axis] for axis in axes]
    tensor, start = at.stored(name, axes), [max(0, -each) for each in begin]
    size = [have - low - max(0, -high) for have, low, high in zip(at.tensors[tensor].shape, start, end, strict=True)]
    tensor = sliced(at, tensor, start, size, node.output)
    begin, end = [max(0, each) for each in begin], [max(0, each) for each in end]
    if any(begin) or any(end):
        tensor = _padded(at, tensor, begin, end, mode, value, node.output)
    at.give(node.output, tensor, axes)


def _padded(at: Lowering, tensor: str, begin: list[int], end: list[int], mode: str, value: float, stem: str) -> str:
    shape = [sum(each) for each in zip(at.tensors[tensor].shape, begin, end, strict=True)]
    pads = at.store(np.stack([int32(begin), int32(end)], axis=1), "pads")
    if mode == "reflect" and all(max(b, e) < n for b, e, n in zip(begin, end, at.tensors[tensor].shape, strict=True)):
        return at.emit("MIRROR_PAD", (tensor, pads), shape, MirrorPad("REFLECT"), stem)
    if mode in ("edge", "wrap"):
        return _repeated(at, tensor, begin, end, mode, stem)
    if mode != "constant":
        raise Refused(f"mode {mode} has no TFLite operator")
    if value == 0.0:
        return at.emit("PAD", (tensor, pads), shape, stem=stem)
    value = max(min(value, 1e30), -1e30)
    return at.emit("PADV2", (tensor, pads, at.value("value", value, tensor)), shape, stem=stem)


def _repeated(at: Lowering, tensor: str, begin: list[int], end: list[int], mode: str, stem: str) -> str:
    """Returns the tensor with its edges, or its other end, repeated along each padded axis."""
    for place, (before, after) in enumerate(zip(begin, end, strict=True)):
        if not before and not after:
            continue
        shape = list(at.tensors[tensor].shape)
        places = np.arange(-before, shape[place] + after)
        kept = places.clip(0, shape[place] - 1) if mode == "edge" else places % shape[place]
        parts, start = [], 0
        while start < len(kept):  # each run of elements that follow each other is one slice
            stop = start + 1
            while stop < len(kept) and kept[stop] == kept[stop - 1] + 1:
                stop += 1
            corner = [int(kept[start]) if number == place else 0 for number in range(len(shape))]
            size = [stop - start if number == place else each for number, each in enumerate(shape)]
            parts.append(sliced(at, tensor, corner, size, stem))
            start = stop
        tensor = joined(at, parts, place, stem)
    return tensor


@operator("Expand")
def expand(at: Lowering, node: Node) -> None:
    """BROADCAST_TO."""
    name, shape = node.input(0), at.shape(node.output)
    axes = at.axes(name) if at.rank(name) == len(shape) else plain(len(shape))
    tensor = at.operand(name, axes)
    target = tuple(shape[axis] for axis in axes)
    if at.tensors[tensor].shape == target:
        at.give(node.output, tensor, axes)
        return
    inputs = (tensor, at.store(int32(target), "shape"))
    at.give(node.output, at.emit("BROADCAST_TO", inputs, target, stem=node.output), axes)


@operator("Tile")
def tile(at: Lowering, node: Node) -> None:
    """CONCATENATION of the tensor with itself, which TFLite-Micro has, along each repeated axis."""
    name = node.input(0)
    axes = at.axes(name)
    repeats = required(at.constant(node.input(1)), "the repeats").reshape(-1)
    tensor = at.stored(name, axes)
    for place, axis in enumerate(axes):
        count = int(repeats[axis])
        tensor = joined(at, [tensor] * count, place, node.output)
    at.give(node.output, tensor, axes)
