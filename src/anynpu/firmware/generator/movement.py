"""Operators that move values and compute nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from anynpu.firmware.generator.boxes import filled, merged, strides
from anynpu.firmware.generator.graph import Graph, Node, values
from anynpu.firmware.generator.layer import Call, Layer, Tensor, require
from anynpu.firmware.generator.types import BYTES
from anynpu.targets.flatbuffer import TfliteTensor


@dataclass(frozen=True)
class Box:
    """A part of an array: first element, and the step of each axis in elements."""

    offset: int
    steps: tuple[int, ...]


def copy(source: int, target: int, sizes: Sequence[int], read: Box, write: Box, item: int) -> Call:
    """Returns the call that moves a box; runs of bytes that continue on both sides are moved at once."""
    walks = [[s * item for s in box.steps] for box in (read, write)]
    out, steps = merged([*sizes, item], [*walks[0], 1], [*walks[1], 1])
    run = 1
    if out and steps[0][-1] == 1 and steps[1][-1] == 1:
        run = out.pop()
        steps = [s[:-1] for s in steps]
    size, (read_steps, write_steps) = filled(out, steps)
    params = {
        "size": size,
        "from": read_steps,
        "to": write_steps,
        "from_offset": read.offset * item,
        "to_offset": write.offset * item,
        "bytes": run,
    }
    return Call("copy", params, (Tensor(source, "void"), Tensor(target, "void")))


def item_of(tensor: TfliteTensor) -> int:
    """Returns the bytes of one element."""
    require(tensor.dtype in BYTES, f"has no kernel for {tensor.dtype}")
    return BYTES[tensor.dtype]


def whole(shape: Sequence[int]) -> Box:
    """Returns the box of a whole contiguous array."""
    return Box(0, tuple(strides(shape)))


def alias(graph: Graph, node: Node) -> Layer:
    """RESHAPE, SQUEEZE, EXPAND_DIMS: the same bytes under another shape."""
    image, out = graph.input(node, 0), graph.output(node)
    require(image.bytes == out.bytes, "changes the number of elements")
    return Layer(node, alias=node.inputs[0], note="same bytes")


def strided_slice(graph: Graph, node: Node) -> Layer:
    """STRIDED_SLICE."""
    image, out = graph.input(node, 0), graph.output(node)
    bounds = [graph.input(node, i) for i in (1, 2, 3)]
    require(all(b.constant for b in bounds), "takes constant bounds")
    begin, end, step = (values(b).reshape(-1).tolist() for b in bounds)
    options = node.options
    require(not options.ellipsisMask and not options.newAxisMask, "has an ellipsis or a new axis")
    sizes, offset, steps = [], 0, []
    for axis, (size, stride) in enumerate(zip(image.shape, strides(image.shape), strict=True)):
        first = _start(begin[axis], step[axis], size, bool(options.beginMask >> axis & 1))
        stop = _stop(end[axis], step[axis], size, bool(options.endMask >> axis & 1))
        if options.shrinkAxisMask >> axis & 1:
            stop = first + 1
        sizes.append(max(0, -(-(stop - first) // step[axis])))
        offset += first * stride
        steps.append(step[axis] * stride)
    read = Box(offset, tuple(steps))
    return Layer(node, (copy(node.inputs[0], node.outputs[0], sizes, read, whole(sizes), item_of(out)),))


def _start(value: int, step: int, size: int, masked: bool) -> int:
    if masked:
        return 0 if step > 0 else size - 1
    value = value + size if value < 0 else value
    return max(0, min(value, size)) if step > 0 else max(-1, min(value, size - 1))


def _stop(value: int, step: int, size: int, masked: bool) -> int:
    if masked:
        return size if step > 0 else -1
    value = value + size if value < 0 else value
    return max(0, min(value, size)) if step > 0 else max(-1, min(value, size - 1))
