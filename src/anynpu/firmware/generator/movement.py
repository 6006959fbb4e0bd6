"""Operators that move values and compute nothing."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

from anynpu.firmware.generator.boxes import broadcast_strides, filled, merged, strides
from anynpu.firmware.generator.graph import Graph, Node, values
from anynpu.firmware.generator.layer import Call, Layer, Tensor, Value, require
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
    params: dict[str, Value] = {
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
        ahead = step[axis] > 0
        first, stop = (0, size) if ahead else (size - 1, -1)
        if not options.beginMask >> axis & 1:
            first = _within(begin[axis], size, ahead)
        if not options.endMask >> axis & 1:
            stop = _within(end[axis], size, ahead)
        if options.shrinkAxisMask >> axis & 1:
            stop = first + 1
        sizes.append(max(0, -(-(stop - first) // step[axis])))
        offset += first * stride
        steps.append(step[axis] * stride)
    read = Box(offset, tuple(steps))
    return Layer(node, (copy(node.inputs[0], node.outputs[0], sizes, read, whole(sizes), item_of(out)),))


def _within(value: int, size: int, ahead: bool) -> int:
    value = value + size if value < 0 else value
    return max(0, min(value, size)) if ahead else max(-1, min(value, size - 1))


def pad(graph: Graph, node: Node) -> Layer:
    """PAD and PADV2: the value everywhere, then the input into its place."""
    image, pads, out = graph.input(node, 0), graph.input(node, 1), graph.output(node)
    require(pads.constant, "takes constant paddings")
    filler = graph.optional(node, 2)
    require(filler is None or filler.constant, "takes a constant value")
    item = item_of(out)
    value = padding_value(graph, node).to_bytes(item, "little", signed=True)
    before = [int(v) for v in values(pads).reshape(-1, 2)[:, 0]]
    steps = strides(out.shape)
    offset = sum(b * s for b, s in zip(before, steps, strict=True))
    fill: dict[str, Value] = {"count": out.bytes // item, "bytes": item, "value": tuple(value.ljust(8, b"\0"))}
    moved = copy(node.inputs[0], node.outputs[0], image.shape, whole(image.shape), Box(offset, tuple(steps)), item)
    return Layer(node, (Call("fill", fill, (Tensor(node.outputs[0], "void"),)), moved))


def _dot(places: Sequence[int], steps: Sequence[int]) -> int:
    """Returns the element at a place along each axis."""
    return sum(place * step for place, step in zip(places, steps, strict=True))


def mirror_pad(graph: Graph, node: Node) -> Layer:
    """MIRROR_PAD: the input into its place, and its ends turned around next to it."""
    image, pads, out = graph.input(node, 0), graph.input(node, 1), graph.output(node)
    require(pads.constant, "takes constant paddings")
    edge = 0 if node.options.mode else 1  # SYMMETRIC repeats the last element, REFLECT does not
    read_steps, write_steps, item = strides(image.shape), strides(out.shape), item_of(out)
    pieces = []
    for size, (before, after) in zip(image.shape, values(pads).reshape(-1, 2).tolist(), strict=True):
        require(max(before, after) <= size - edge, "pads more than the input holds")
        # Of each: how many elements, the first that is read, the step, and where they go.
        along = [(before, before - 1 + edge, -1, 0), (size, 0, 1, before), (after, size - 1 - edge, -1, before + size)]
        pieces.append([piece for piece in along if piece[0]])
    calls = []
    for parts in itertools.product(*pieces):
        sizes, firsts, signs, places = zip(*parts, strict=True)
        read = Box(_dot(firsts, read_steps), tuple(a * b for a, b in zip(signs, read_steps, strict=True)))
        write = Box(_dot(places, write_steps), tuple(write_steps))
        calls.append(copy(node.inputs[0], node.outputs[0], sizes, read, write, item))
    return Layer(node, tuple(calls))


def padding_value(graph: Graph, node: Node) -> int:
    """Returns the stored value that PAD or PADV2 puts around its input."""
    out, filler = graph.output(node), graph.optional(node, 2)
    require(out.dtype in ("int8", "int16", "int32"), f"has no kernel for {out.dtype}")
    if filler is not None:
        return int(values(filler).reshape(-1)[0])
    return (out.zero_point or (0,))[0] if out.dtype == "int8" else 0


def concatenation(graph: Graph, node: Node) -> Layer:
    """CONCATENATION."""
    out = graph.output(node)
    require(node.options.fusedActivationFunction == 0, "has a fused activation")
    axis = node.options.axis % len(out.shape)
    steps, item, offset, calls = strides(out.shape), item_of(out), 0, []
    for number in node.inputs:
        part = graph.tensors[number]
        require(part.scale == out.scale and part.zero_point == out.zero_point, "changes the quantisation")
        write = Box(offset, tuple(steps))
        calls.append(copy(number, node.outputs[0], part.shape, whole(part.shape), write, item))
        offset += part.shape[axis] * steps[axis]
    return Layer(node, tuple(calls))


def _parts(graph: Graph, node: Node, number: int, axis: int) -> Layer:
    """Returns the copies of consecutive parts of one tensor into the outputs."""
    image = graph.tensors[number]
    steps, item, offset, calls = strides(image.shape), item_of(image), 0, []
    for place, target in enumerate(node.outputs):
        sizes = graph.output(node, place).shape
        read = Box(offset, tuple(steps))
        calls.append(copy(number, target, sizes, read, whole(sizes), item))
        offset += sizes[axis] * steps[axis]
    return Layer(node, tuple(calls))


def split(graph: Graph, node: Node) -> Layer:
    """SPLIT."""
    axis, image = graph.input(node, 0), graph.input(node, 1)
    require(axis.constant, "takes a constant axis")
    return _parts(graph, node, node.inputs[1], int(values(axis).reshape(-1)[0]) % len(image.shape))


def split_v(graph: Graph, node: Node) -> Layer:
    """SPLIT_V."""
    image, axis = graph.input(node, 0), graph.input(node, 2)
    require(axis.constant, "takes a constant axis")
    return _parts(graph, node, node.inputs[0], int(values(axis).reshape(-1)[0]) % len(image.shape))


def slice_(graph: Graph, node: Node) -> Layer:
    """SLICE."""
    image, begin, out = graph.input(node, 0), graph.input(node, 1), graph.output(node)
    require(begin.constant and graph.input(node, 2).constant, "takes constant bounds")
    steps = strides(image.shape)
    offset = sum(int(b) * s for b, s in zip(values(begin).reshape(-1), steps, strict=True))
    read = Box(offset, tuple(steps))
    return Layer(node, (copy(node.inputs[0], node.outputs[0], out.shape, read, whole(out.shape), item_of(out)),))


def transpose(graph: Graph, node: Node) -> Layer:
    """TRANSPOSE."""
    image, order, out = graph.input(node, 0), graph.input(node, 1), graph.output(node)
    require(order.constant, "takes a constant order")
    steps = strides(image.shape)
    read = Box(0, tuple(steps[int(a)] for a in values(order).reshape(-1)))
    return Layer(node, (copy(node.inputs[0], node.outputs[0], out.shape, read, whole(out.shape), item_of(out)),))


def broadcast_to(graph: Graph, node: Node) -> Layer:
    """BROADCAST_TO."""
    image, out = graph.input(node, 0), graph.output(node)
    read = Box(0, tuple(broadcast_strides(image.shape, out.shape)))
    return Layer(node, (copy(node.inputs[0], node.outputs[0], out.shape, read, whole(out.shape), item_of(out)),))


def pack(graph: Graph, node: Node) -> Layer:
    """PACK."""
    out = graph.output(node)
    axis = node.options.axis % len(out.shape)
    steps, item = strides(out.shape), item_of(out)
    others = tuple(s for a, s in enumerate(steps) if a != axis)
    calls = []
    for place, number in enumerate(node.inputs):
        shape = graph.tensors[number].shape
        calls.append(copy(number, node.outputs[0], shape, whole(shape), Box(place * steps[axis], others), item))
    return Layer(node, tuple(calls))


def unpack(graph: Graph, node: Node) -> Layer:
    """UNPACK."""
    image = graph.input(node, 0)
    axis = node.options.axis % len(image.shape)
    steps, item = strides(image.shape), item_of(image)
    others = tuple(s for a, s in enumerate(steps) if a != axis)
    calls = []
    for place, number in enumerate(node.outputs):
        shape = graph.tensors[number].shape
        calls.append(copy(node.inputs[0], number, shape, Box(place * steps[axis], others), whole(shape), item))
    return Layer(node, tuple(calls))


def _blocks(graph: Graph, node: Node, small: tuple[int, ...], large: tuple[int, ...], inward: bool) -> Layer:
    """Returns the copy between blocks of pixels (`large`) and their channels (`small`)."""
    block = node.options.blockSize
    n, h, w, _ = small
    depth = large[3]
    sizes = (n, h, block, w, block, depth)
    fine = strides(large)
    pixels = (fine[0], fine[1] * block, fine[1], fine[2] * block, fine[2], 1)
    coarse = strides(small)
    channels = (coarse[0], coarse[1], block * depth, coarse[2], depth, 1)
    read, write = (pixels, channels) if inward else (channels, pixels)
    item = item_of(graph.output(node))
    return Layer(node, (copy(node.inputs[0], node.outputs[0], sizes, Box(0, read), Box(0, write), item),))


def space_to_depth(graph: Graph, node: Node) -> Layer:
    """SPACE_TO_DEPTH."""
    return _blocks(graph, node, graph.output(node).shape, graph.input(node, 0).shape, inward=True)


def depth_to_space(graph: Graph, node: Node) -> Layer:
    """DEPTH_TO_SPACE."""
    return _blocks(graph, node, graph.input(node, 0).shape, graph.output(node).shape, inward=False)


def gather(graph: Graph, node: Node) -> Layer:
    """GATHER."""
    image, indices = graph.input(node, 0), graph.input(node, 1)
    require(indices.dtype == "int32", f"has no kernel for {indices.dtype} indices")
    axis = node.options.axis % len(image.shape)
    batch = node.options.batchDims % max(len(indices.shape), 1) if node.options.batchDims else 0
    params = {
        "batches": math.prod(image.shape[:batch]),
        "outer": math.prod(image.shape[batch:axis]),
        "axis": image.shape[axis],
        "count": math.prod(indices.shape[batch:]),
        "bytes": math.prod(image.shape[axis + 1 :]) * item_of(image),
    }
    numbers = (Tensor(node.inputs[0], "void"), Tensor(node.inputs[1], "int32_t"), Tensor(node.outputs[0], "void"))
    return Layer(node, (Call("gather", params, numbers),))
