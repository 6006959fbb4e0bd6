"""Writes ONNX operators that TFLite has no form of as other ONNX operators, which have rules.

Windows over three axes become windows over two, with the frames of the window behind one another in the channels.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

from anynpu.graph.fold import static_shapes
from anynpu.graph.shapes import infer
from anynpu.lowering.computed import computed_convolution
from anynpu.lowering.drafts import Draft, spans
from anynpu.lowering.negative import COUNTED
from anynpu.lowering.places import col_to_image, gather_elements, grid_sample, scatter_elements
from anynpu.lowering.table import Node
from anynpu.lowering.transposed import transposed_frames

Rewrite = Callable[[Draft, Node], bool]
"""Writes a node as others, if it can."""


def rewritten(model: onnx.ModelProto) -> onnx.ModelProto:
    """Returns the model with every operator that has a rule below written as others."""
    return _by_rules(_by_rules(model, REWRITES), COUNTED)


def _by_rules(model: onnx.ModelProto, rules: Mapping[str, Rewrite]) -> onnx.ModelProto:
    if not any(node.op_type in rules for node in model.graph.node):
        return model
    new = onnx.ModelProto()
    new.CopyFrom(model)
    shapes = static_shapes(new.graph)
    constants = {item.name: numpy_helper.to_array(item) for item in new.graph.initializer}
    shapes |= {name: array.shape for name, array in constants.items()}
    values = (*new.graph.value_info, *new.graph.input, *new.graph.output)
    reals = frozenset(each.name for each in values if each.type.tensor_type.elem_type == onnx.TensorProto.FLOAT)
    makers = {name: each for each in new.graph.node for name in each.output}
    nodes: list[onnx.NodeProto] = []
    for proto in new.graph.node:
        node = Node.of(proto)
        ours = node.op in rules and not proto.domain
        draft = Draft(node.output, shapes, constants, reals, makers) if ours else None
        known = all(name in shapes for name in (*node.inputs[:3], node.output) if name)
        if draft is None or not known or not rules[node.op](draft, node):
            nodes.append(proto)
            continue
        nodes += draft.nodes
        new.graph.initializer.extend(numpy_helper.from_array(array, name) for name, array in draft.stored.items())
    kept = [onnx.NodeProto.FromString(node.SerializeToString()) for node in nodes]
    del new.graph.node[:]
    new.graph.node.extend(kept)
    return infer(new, strict=False)


def _frames_first(draft: Draft, source: str, shape: tuple[int, ...]) -> str:
    """Returns (n, c, d, h, w) as images, (n * d, c, h, w)."""
    n, c, d, h, w = shape
    turned = draft.add("Transpose", [source], perm=[0, 2, 1, 3, 4])
    return draft.reshape(turned, n * d, c, h, w)


def _frames_back(draft: Draft, source: str, shape: tuple[int, ...]) -> None:
    """Gives images as the result of shape (n, c, d, h, w)."""
    n, c, d, h, w = shape
    frames = draft.reshape(source, n, d, c, h, w)
    draft.add("Transpose", [frames], last=True, perm=[0, 2, 1, 3, 4])


def convolution(draft: Draft, node: Node) -> bool:
    """A convolution over three axes is one over two of the frames of its window, joined in the channels; one with
    computed weights is a product."""
    weights = draft.constants.get(node.input(1))
    shape, after = draft.shapes[node.input(0)], draft.shapes[node.output]
    if computed_convolution(draft, node):
        return True
    if weights is None or len(shape) != 5:
        return False
    depth = weights.shape[2]
    pads, strides, dilations = spans(node, list(shape[2:]), list(weights.shape[2:]))
    groups = int(node.get("group", 1))
    n, c, d, h, w = shape
    source = draft.reshape(node.input(0), n, c, d, h * w)
    if pads[0] or pads[3]:
        widths = draft.store(np.asarray([0, 0, pads[0], 0, 0, 0, pads[3], 0], np.int64), "pads")
        source = draft.add("Pad", [source, widths])
    frames = []
    for number in range(depth):
        start = number * dilations[0]
        limits = (start, start + (after[2] - 1) * strides[0] + 1, 2, strides[0])
        bounds = [draft.store(np.asarray([value], np.int64), "bound") for value in limits]
        part = draft.add("Slice", [source, *bounds])
        frames.append(draft.reshape(part, n, groups, c // groups, after[2], h * w))
    joined = draft.add("Concat", frames, axis=2) if depth > 1 else frames[0]
    images = _frames_first(draft, draft.reshape(joined, n, depth * c, after[2], h, w), (n, depth * c, after[2], h, w))
    flat = np.moveaxis(weights, 2, 1).reshape(weights.shape[0], -1, *weights.shape[3:])
    inputs = [images, draft.store(np.ascontiguousarray(flat), "weights"), *filter(None, [node.input(2)])]
    settings: dict[str, Any] = {
        "pads": [*pads[1:3], *pads[4:]],
        "strides": strides[1:],
        "dilations": dilations[1:],
        "group": groups,
    }
    _frames_back(draft, draft.add("Conv", inputs, **settings), after)
    return True


def pool(draft: Draft, node: Node) -> bool:
    """A pool over three axes is one along the frames, then one over each frame."""
    shape, after = draft.shapes[node.input(0)], draft.shapes[node.output]
    if len(shape) != 5 or len([name for name in node.outputs if name]) > 1:
        return False
    kernel = node.integers("kernel_shape", [])
    pads, strides, dilations = spans(node, list(shape[2:]), kernel)
    own: dict[str, Any] = {
        name: node.get(name) for name in ("ceil_mode", "count_include_pad") if name in node.attributes
    }
    # A mean of means: each window has as many elements as its two parts have, multiplied.
    n, c, d, h, w = shape
    frames = after[2]
    source = node.input(0)
    if kernel[0] > 1 or strides[0] > 1 or pads[0] or pads[3]:
        rows = draft.reshape(source, n, c, d, h * w)
        along = _window([kernel[0], 1], [strides[0], 1], [pads[0], 0, pads[3], 0], [dilations[0], 1])
        source = draft.reshape(draft.add(node.op, [rows], **along, **own), n, c, frames, h, w)
    images = _frames_first(draft, source, (n, c, frames, h, w))
    across = _window(kernel[1:], strides[1:], [*pads[1:3], *pads[4:]], dilations[1:])
    _frames_back(draft, draft.add(node.op, [images], **across, **own), after)
    return True


def _window(kernel: list[int], strides: list[int], pads: list[int], dilations: list[int]) -> dict[str, Any]:
    """Returns the settings of a pool over two axes; an average has no dilations."""
    settings: dict[str, Any] = {"kernel_shape": kernel, "strides": strides, "pads": pads}
    return settings | ({"dilations": dilations} if max(dilations) > 1 else {})


def local_response(draft: Draft, node: Node) -> bool:
    """A local response normalisation: squares, their sums over neighbouring channels by a 1x1 convolution, a power."""
    shape, size = draft.shapes[node.input(0)], int(node.attributes["size"])
    if len(shape) != 4:
        return False
    alpha, beta, bias = float(node.get("alpha", 1e-4)), float(node.get("beta", 0.75)), float(node.get("bias", 1.0))
    places = np.arange(shape[1])
    away = places[None] - places[:, None]
    near = (away >= -((size - 1) // 2)) & (away <= size // 2)
    band = np.where(near, alpha / size, 0.0).astype(np.float32)[:, :, None, None]
    square = draft.add("Mul", [node.input(0), node.input(0)])
    offset = draft.store(np.full(shape[1], bias, np.float32), "bias")
    sums = draft.add("Conv", [square, draft.store(band, "band"), offset])
    power = draft.add("Pow", [sums, draft.store(np.asarray(-beta, np.float32), "power")])
    draft.add("Mul", [node.input(0), power], last=True)
    return True


def lp_pool(draft: Draft, node: Node) -> bool:
    """A pool with a p of 1 or 2: the mean of sizes or squares times the size of the window, or the root of that."""
    kernel, power = node.integers("kernel_shape", []), int(node.get("p", 2))
    if power not in (1, 2) or len(kernel) != len(draft.shapes[node.input(0)]) - 2:
        return False
    names = ("kernel_shape", "strides", "pads", "dilations", "auto_pad", "ceil_mode")
    settings = {name: node.get(name) for name in names if name in node.attributes}
    source = node.input(0)
    size = draft.add("Mul", [source, source]) if power == 2 else draft.add("Abs", [source])
    mean = draft.add("AveragePool", [size], count_include_pad=1, **settings)
    count = draft.store(np.asarray(math.prod(kernel), np.float32), "count")
    total = draft.add("Mul", [mean, count], last=power == 1)
    if power == 2:
        draft.add("Sqrt", [total], last=True)
    return True


def global_lp_pool(draft: Draft, node: Node) -> bool:
    """The norm of each channel with a p of 1 or 2: the sum of sizes, or the root of that of squares."""
    power, rank = int(node.get("p", 2)), len(draft.shapes[node.input(0)])
    if power not in (1, 2):
        return False
    axes = draft.store(np.arange(2, rank, dtype=np.int64), "axes")
    size = draft.add("Abs", [node.input(0)]) if power == 1 else node.input(0)
    draft.add("ReduceSum" if power == 1 else "ReduceL2", [size, axes], last=True, keepdims=1)
    return True


def reverse_sequence(draft: Draft, node: Node) -> bool:
    """Sequences turned around are gathered from behind, where one length is known for all of them."""
    lengths, shape = draft.constants.get(node.input(1)), draft.shapes[node.input(0)]
    time, batch = int(node.get("time_axis", 0)), int(node.get("batch_axis", 1))
    if lengths is None or {time, batch} != {0, 1} or len({*lengths.reshape(-1).tolist()}) != 1:
        return False
    length = int(lengths.reshape(-1)[0])
    order = np.concatenate([np.arange(length)[::-1], np.arange(length, shape[time])])
    draft.add("Gather", [node.input(0), draft.store(order.astype(np.int64), "order")], last=True, axis=time)
    return True


def whole_quotient(draft: Draft, node: Node) -> bool:
    """Places that are divided as real numbers by a whole one, and rounded down or cut: a division of whole numbers."""
    if node.get("to") not in (onnx.TensorProto.INT64, onnx.TensorProto.INT32):
        return False
    maker = draft.makers.get(node.input(0))
    if maker is not None and maker.op_type == "Floor":  # what is cut needs none
        maker = draft.makers.get(maker.input[0])
    real = draft.makers.get(maker.input[0]) if maker is not None and maker.op_type == "Div" else None
    if maker is None or real is None or real.op_type != "Cast":
        return False
    divisor = draft.constants.get(maker.input[1])
    if divisor is None or not np.all((divisor >= 1) & (divisor == np.rint(divisor))):
        return False
    name, source = real.input[0], draft.makers.get(real.input[0])
    while source is not None and source.op_type in ("Reshape", "Transpose", "Squeeze", "Unsqueeze", "Slice", "Flatten"):
        name, source = source.input[0], draft.makers.get(source.input[0])
    # The places of the largest have 64 bits and are never below zero
    if source is None or not (
        source.op_type in ("ArgMax", "ArgMin") or (source.op_type, name) == ("TopK", source.output[-1])
    ):
        return False
    quotient = draft.store(divisor.astype(np.int64), "divisor")
    draft.add("Cast", [draft.add("Div", [real.input[0], quotient])], last=True, to=node.get("to"))
    return True


REWRITES: Mapping[str, Rewrite] = {
    "Cast": whole_quotient,
    "Conv": convolution,
    "ConvTranspose": transposed_frames,
    "MaxPool": pool,
    "AveragePool": pool,
    "LRN": local_response,
    "LpPool": lp_pool,
    "GlobalLpPool": global_lp_pool,
    "GridSample": grid_sample,
    "Col2Im": col_to_image,
    "ScatterElements": scatter_elements,
    "GatherElements": gather_elements,
    "ReverseSequence": reverse_sequence,
}
