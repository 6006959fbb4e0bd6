"""Operators that choose elements by number or by condition."""

from __future__ import annotations

import numpy as np

from anynpu.lowering.graph import int32
from anynpu.lowering.lower import Lowering, plain
from anynpu.lowering.operators.movement import sliced
from anynpu.lowering.options import Gather
from anynpu.lowering.table import Node, Refused, operator


@operator("Gather")
def gather(at: Lowering, node: Node) -> None:
    """GATHER along the axis; a SLICE where the numbers are constant and follow each other."""
    data, numbers = node.input(0), node.input(1)
    rank = at.rank(data)
    axis = int(node.get("axis", 0)) % rank
    chosen = at.constant(numbers)
    if chosen is None:
        order = plain(rank)
        if at.shape(node.output) == () or axis != 0:
            raise Refused("numbers computed at run time choose along the first axis only")
        inputs = (at.stored(data, order), at.stored(numbers, plain(at.rank(numbers))))
        dtype = at.tensors[inputs[0]].dtype
        at.give(node.output, at.emit("GATHER", inputs, at.shape(node.output), Gather(0), node.output, dtype))
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
    _give_chosen(at, node, tensor, axes, axis, chosen.ndim)


def _give_chosen(at: Lowering, node: Node, tensor: str, axes: tuple[int, ...], axis: int, rank: int) -> None:
    """Gives what was chosen along one axis, which ONNX replaces by the axes of the numbers."""
    if rank == 1:
        at.give(node.output, tensor, axes)
        return
    new: list[int] = []
    for each in axes:
        new += range(axis, axis + rank) if each == axis else [each if each < axis else each + rank - 1]
    shape = [at.shape(node.output)[each] for each in new]
    at.give(node.output, at.reshape(tensor, shape), tuple(new))


@operator("Where")
def where(at: Lowering, node: Node) -> None:
    """SELECT_V2."""
    shape = at.shape(node.output)
    axes = plain(len(shape))
    tensors = [at.operand(name, axes) for name in node.inputs]
    dtype = at.tensors[tensors[1]].dtype
    at.give(node.output, at.emit("SELECT_V2", tensors, shape, stem=node.output, dtype=dtype))
