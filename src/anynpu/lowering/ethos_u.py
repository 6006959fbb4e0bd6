"""Writes a float graph in operators that an Ethos-U computes: what its compiler would leave to the CPU, as others.

Each rule is a small function of one operator; its docstring says what becomes of it. Every other runtime has kernels
for the operators as they were, so the rules are for these NPUs alone.
"""

from __future__ import annotations

import math
from dataclasses import fields, replace

import numpy as np

from anynpu.lowering.choices import gather, mirrored, stepped
from anynpu.lowering.graph import Graph, Operator, int32, pruned
from anynpu.lowering.moves import MOST_JOINED, few_axes, small_transposes
from anynpu.lowering.options import (
    Add,
    ArgMax,
    Concatenation,
    Conv2D,
    DepthToSpace,
    DepthwiseConv2D,
    Mul,
    Reducer,
    ResizeBilinear,
    ResizeNearestNeighbor,
    SpaceToDepth,
)
from anynpu.lowering.rewriting import Resizes, Rewriting, Rule
from anynpu.tensors import Array

MOST_SIDE = 1 << 16
"""How large an axis of a feature map may be."""
MOST_REDUCED = 4095
"""How many elements of one axis the NPU takes the mean of."""
# A square root of zero must not be zero times infinity.
_TINY = 1e-12


def for_ethos_u(graph: Graph, resizes: Resizes, longest_step: int) -> Graph:
    """Returns the graph in operators that the NPU computes, as far as there are such; it steps only so far at once."""
    at = Rewriting(graph, resizes, longest_step, dict(graph.tensors), [])
    for operator in graph.operators:
        rule = RULES.get(operator.kind)
        if rule is None or not rule(at, operator):
            at.operators.append(operator)
    if tuple(at.operators) == graph.operators:
        return graph
    return few_axes(small_transposes(pruned(at.operators, at.tensors, graph.inputs, graph.outputs)))


def resize(at: Rewriting, operator: Operator) -> bool:
    """A resize by a factor that the NPU does not have is a product with a stored matrix along each axis."""
    source, result = operator.inputs[0], operator.outputs[0]
    if at.resizes(operator, at.graph):
        return False
    before, after = at.shape(source), at.shape(result)
    options = operator.options
    assert isinstance(options, ResizeBilinear | ResizeNearestNeighbor)
    tensor, axes = source, [0, 1, 2, 3]
    for axis in sorted((1, 2), key=lambda each: after[each] / before[each]):
        if before[axis] == after[axis]:
            continue
        order = [*(each for each in axes if each != axis), axis]
        tensor = at.transpose(tensor, [axes.index(each) for each in order], f"{result}/turned{axis}")
        weights = resize_weights(before[axis], after[axis], operator.kind, options)
        tensor, axes = at.multiply(tensor, weights, f"{result}/along{axis}"), order
    at.give(operator, at.transpose(tensor, [axes.index(each) for each in range(4)], f"{result}/back"))
    return True


def resize_weights(before: int, after: int, kind: str, options: ResizeBilinear | ResizeNearestNeighbor) -> Array:
    """Returns what each element of a resized axis takes of those before it, as TFLite's kernels do."""
    align, half = options.align_corners, options.half_pixel_centers
    scale = (before - 1) / (after - 1) if align and after > 1 else before / after
    at = np.arange(after, dtype=np.float64)
    rows = np.arange(after)
    weights = np.zeros((after, before))
    if kind == "RESIZE_NEAREST_NEIGHBOR":
        places = (at + 0.5) * scale if half else at * scale
        chosen = np.floor(places + 0.5) if align else np.floor(places + 1e-9)
        weights[rows, np.clip(chosen, 0, before - 1).astype(int)] = 1.0
        return weights
    places = (at + 0.5) * scale - 0.5 if half else at * scale
    low = np.maximum(np.floor(places + 1e-9), 0).astype(int).clip(0, before - 1)
    part = np.maximum(places, 0) - low
    high = np.minimum(low + 1, before - 1)
    np.add.at(weights, (rows, low), 1 - part)
    np.add.at(weights, (rows, high), part)
    return weights


def depth_and_space(at: Rewriting, operator: Operator) -> bool:
    """DEPTH_TO_SPACE and SPACE_TO_DEPTH are moves of axes."""
    source, result = operator.inputs[0], operator.outputs[0]
    options = operator.options
    assert isinstance(options, DepthToSpace | SpaceToDepth)
    block = options.block_size
    batch, height, width, channels = at.shape(source)
    if operator.kind == "DEPTH_TO_SPACE":
        parts = (batch, height, width, block, block, channels // block**2)
    else:
        parts = (batch, height // block, block, width // block, block, channels)
    apart = at.reshape(source, parts, f"{result}/parts")
    moved = at.transpose(apart, (0, 1, 3, 2, 4, 5), f"{result}/moved")
    at.give(operator, at.reshape(moved, at.shape(result), f"{result}/joined"))
    return True


def broadcast(at: Rewriting, operator: Operator) -> bool:
    """BROADCAST_TO grows leading axes as a resize of one pixel, others by joining, and where they are long by ones."""
    source, result = operator.inputs[0], operator.outputs[0]
    target, dtype = at.shape(result), at.tensors[source].dtype
    if at.tensors[source].data is not None:
        return False
    if dtype in ("int32", "bool"):
        ones = at.store(np.ones(target, dtype), f"{result}/ones")
        kind, options = ("MUL", Mul()) if dtype == "int32" else ("LOGICAL_AND", None)
        at.give(operator, at.emit(kind, (source, ones), target, options, f"{result}/repeated"))
        return True
    shape = [1] * (len(target) - len(at.shape(source))) + list(at.shape(source))
    tensor = at.reshape(source, shape, f"{result}/whole")
    first = next((place for place, size in enumerate(shape) if size != 1), len(shape))
    grown, inner = math.prod(target[:first]), math.prod(shape[first:])
    if MOST_JOINED < grown < MOST_SIDE:
        pixel = at.reshape(tensor, (1, 1, 1, inner), f"{result}/pixel")
        inputs = (pixel, at.store(int32((grown, 1)), f"{result}/size"))
        spread = at.emit(
            "RESIZE_NEAREST_NEIGHBOR", inputs, (1, grown, 1, inner), ResizeNearestNeighbor(), f"{result}/spread"
        )
        shape[:first] = target[:first]
        tensor = at.reshape(spread, shape, f"{result}/grown")
    for place, size in enumerate(target):
        if shape[place] == size:
            continue
        if size > MOST_JOINED:
            ones = at.store(np.ones(target, np.float32), f"{result}/ones")
            tensor = at.emit("MUL", (tensor, ones), target, Mul(), f"{result}/repeated")
            break
        shape[place] = size
        tensor = at.emit("CONCATENATION", [tensor] * size, shape, Concatenation(axis=place), f"{result}/axis{place}")
    at.give(operator, tensor)
    return True


def square_root(at: Rewriting, operator: Operator) -> bool:
    """SQRT is the value times its RSQRT, which 16 bits hold."""
    source, result = operator.inputs[0], operator.outputs[0]
    shape = at.shape(source)
    above = at.emit(
        "ADD", (source, at.store(np.asarray(_TINY, np.float32), f"{result}/tiny")), shape, Add(), f"{result}/above"
    )
    inverse = at.emit("RSQRT", (above,), shape, None, f"{result}/inverse")
    at.give(operator, at.emit("MUL", (source, inverse), shape, Mul(), f"{result}/root"))
    return True


def mean(at: Rewriting, operator: Operator) -> bool:
    """A MEAN of several images, or of channels between others, has what it is taken over as rows of one image, in two
    axes where it is long; one of the channels of several rows of pixels has one row."""
    source, result = operator.inputs[0], operator.outputs[0]
    axes = at.graph.constant(operator.inputs[1])
    shape = at.shape(source)
    if axes is None:
        return False
    over = sorted({int(axis) % len(shape) for axis in np.asarray(axes).reshape(-1)})
    rest = [axis for axis in range(len(shape)) if axis not in over]
    count = math.prod(shape[axis] for axis in over)
    kept = [axis for axis in rest if shape[axis] != 1]
    last, first = all(axis < over[0] for axis in kept), all(axis > over[-1] for axis in kept)
    if last and len(kept) > 1 and over[-1] == len(shape) - 1:
        row = at.reshape(source, (1, math.prod(shape[axis] for axis in kept), count), f"{result}/row")
        inputs = (row, at.store(int32((2,)), f"{result}/axes"))
        small = at.emit("MEAN", inputs, (*at.shape(row)[:2], 1), Reducer(True), f"{result}/mean")
        at.give(operator, at.reshape(small, at.shape(result), f"{result}/kept"))
        return True
    image, reduced = image_for_mean(count, math.prod(shape[axis] for axis in rest))
    whole = max(shape) <= MOST_SIDE and (last or (first and shape[0] == 1))
    if whole or max(image) > MOST_SIDE or max(image[axis] for axis in reduced) > MOST_REDUCED:
        return False
    moved = at.transpose(source, (*over, *rest), f"{result}/rows")
    inputs = (at.reshape(moved, image, f"{result}/image"), at.store(int32(reduced), f"{result}/axes"))
    left = [1 if axis in reduced else size for axis, size in enumerate(image)]
    small = at.emit("MEAN", inputs, left, Reducer(True), f"{result}/mean")
    at.give(operator, at.reshape(small, at.shape(result), f"{result}/kept"))
    return True


def image_for_mean(count: int, kept: int) -> tuple[tuple[int, int, int, int], tuple[int, ...]]:
    """Returns an image with `count` elements for each of the `kept` ones, and the axes that are reduced."""
    if kept > MOST_SIDE:
        return (1, count, *sides(kept)), (1,)
    return (1, *(sides(count) if count > MOST_REDUCED else (count, 1)), kept), (1, 2)


def sides(count: int) -> tuple[int, int]:
    """Returns two factors of a number, as near to each other as there are."""
    side = next(side for side in range(math.isqrt(count), 0, -1) if count % side == 0)
    return count // side, side


def smallest(at: Rewriting, operator: Operator) -> bool:
    """ARG_MIN is the ARG_MAX of the negative."""
    source, result = operator.inputs[0], operator.outputs[0]
    minus = at.store(np.asarray(-1, np.float32), f"{result}/minus")
    turned = at.emit("MUL", (source, minus), at.shape(source), Mul(), f"{result}/turned")
    at.operators.append(replace(operator, kind="ARG_MAX", inputs=(turned, operator.inputs[1]), options=ArgMax()))
    return True


def strided(at: Rewriting, operator: Operator) -> bool:
    """A convolution in long steps is one in steps of one, over an image whose channels hold a block of pixels each."""
    options, source, result = operator.options, operator.inputs[0], operator.outputs[0]
    weights = at.graph.constant(operator.inputs[1])
    assert isinstance(options, Conv2D)
    if isinstance(options, DepthwiseConv2D) and weights is not None:
        weights, options = _dense(weights, options)
    steps = options.stride_h, options.stride_w
    dilated = (options.dilation_h_factor, options.dilation_w_factor) != (1, 1)
    if max(steps) <= at.longest_step or weights is None or dilated or weights.shape[3] != at.shape(source)[3]:
        return False
    batch, *_, channels = at.shape(source)
    outputs, sizes = at.shape(result)[1:3], list(at.shape(source)[1:3])
    kernel = [-(-size // step) * step for size, step in zip(weights.shape[1:3], steps, strict=True)]
    pads = [(0, 0)]
    for axis in range(2):
        total = max(0, (outputs[axis] - 1) * steps[axis] + weights.shape[1 + axis] - sizes[axis])
        begin = total // 2 if options.padding == "SAME" else 0
        needed = (outputs[axis] - 1) * steps[axis] + kernel[axis]
        pads.append((begin, max(0, needed - sizes[axis] - begin)))
        sizes[axis] = needed
    tensor = source
    if any(sum(pair) for pair in pads):
        wide = [size + sum(pair) for size, pair in zip(at.shape(source), [*pads, (0, 0)], strict=True)]
        around = at.store(np.asarray([*pads, (0, 0)], np.int32), f"{result}/pads")
        tensor = at.emit("PAD", (source, around), wide, None, f"{result}/padded")
    if at.shape(tensor)[1:3] != tuple(sizes):
        extent = (batch, *sizes, channels)
        bounds = [at.store(int32(each), f"{result}/bound") for each in ((0, 0, 0, 0), extent)]
        tensor = at.emit("SLICE", (tensor, *bounds), extent, None, f"{result}/cut")
    (high, wide_step), (rows, columns) = steps, (sizes[0] // steps[0], sizes[1] // steps[1])
    apart = at.reshape(tensor, (batch, rows, high, columns, wide_step, channels), f"{result}/parts")
    moved = at.transpose(apart, (0, 1, 3, 2, 4, 5), f"{result}/moved")
    blocks = at.reshape(moved, (batch, rows, columns, high * wide_step * channels), f"{result}/blocks")
    grown = np.zeros((len(weights), *kernel, channels), np.float32)
    grown[:, : weights.shape[1], : weights.shape[2]] = weights
    grown = grown.reshape(len(weights), kernel[0] // high, high, kernel[1] // wide_step, wide_step, channels)
    grown = grown.transpose(0, 1, 3, 2, 4, 5).reshape(len(weights), kernel[0] // high, kernel[1] // wide_step, -1)
    inputs = (blocks, at.store(np.ascontiguousarray(grown), f"{result}/weights"), *operator.inputs[2:])
    plain = replace(options, padding="VALID", stride_h=1, stride_w=1)
    at.give(operator, at.emit("CONV_2D", inputs, at.shape(result), plain, f"{result}/steps"))
    return True


def _dense(weights: Array, options: DepthwiseConv2D) -> tuple[Array, Conv2D]:
    """Returns the weights of a depthwise convolution among zeros, as a convolution over all channels has them."""
    _, high, wide, count = weights.shape
    dense = np.zeros((count, high, wide, count // options.depth_multiplier), np.float32)
    for number in range(count):
        dense[number, :, :, number // options.depth_multiplier] = weights[0, :, :, number]
    return dense, Conv2D(**{each.name: getattr(options, each.name) for each in fields(Conv2D)})


RULES: dict[str, Rule] = {
    "RESIZE_BILINEAR": resize,
    "RESIZE_NEAREST_NEIGHBOR": resize,
    "DEPTH_TO_SPACE": depth_and_space,
    "SPACE_TO_DEPTH": depth_and_space,
    "BROADCAST_TO": broadcast,
    "SQRT": square_root,
    "MEAN": mean,
    "ARG_MIN": smallest,
    "GATHER": gather,
    "MIRROR_PAD": mirrored,
    "STRIDED_SLICE": stepped,
    "CONV_2D": strided,
    "DEPTHWISE_CONV_2D": strided,
}
