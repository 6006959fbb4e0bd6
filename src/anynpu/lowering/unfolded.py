"""Convolutions that TFLite has no operator for, as ONNX operators that have rules: those whose weights are computed, as
products of matrices, and transposed ones over three axes, as transposed ones over two.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from anynpu.lowering.drafts import Draft
from anynpu.lowering.table import Node

MOST_UNFOLDED = 1 << 22
"""How many values all windows of a convolution with computed weights may have together."""


def spans(node: Node, size: list[int], kernel: list[int]) -> tuple[list[int], list[int], list[int]]:
    """Returns the pads, strides and dilations of a window."""
    rank = len(size)
    strides = node.integers("strides", [1] * rank)
    dilations = node.integers("dilations", [1] * rank)
    how = node.get("auto_pad", "NOTSET")
    if how in ("SAME_UPPER", "SAME_LOWER"):
        extents = [(k - 1) * d + 1 for k, d in zip(kernel, dilations, strict=True)]
        needed = [max(0, (-(-n // s) - 1) * s + e - n) for n, s, e in zip(size, strides, extents, strict=True)]
        small, large = [n // 2 for n in needed], [n - n // 2 for n in needed]
        return (small + large if how == "SAME_UPPER" else large + small), strides, dilations
    return (node.integers("pads", [0] * 2 * rank) if how == "NOTSET" else [0] * 2 * rank), strides, dilations


def numbers(draft: Draft, values: list[int], what: str) -> str:
    """Returns the name of a new constant of whole numbers."""
    return draft.store(np.asarray(values, np.int64), what)


def product_of_windows(draft: Draft, node: Node) -> bool:
    """A convolution whose weights are computed: its windows as the rows of a matrix, times the weights as another."""
    source, weights = node.input(0), node.input(1)
    before, kernel, after = draft.shapes[source], draft.shapes[weights], draft.shapes[node.output]
    rank, group, channels = len(before) - 2, int(node.get("group", 1)), before[1]
    places, taps, each = math.prod(after[2:]), math.prod(kernel[2:]), kernel[1]
    if weights in draft.constants or rank not in (1, 2) or before[0] * places * taps * channels > MOST_UNFOLDED:
        return False
    joined = _windows(draft, node, after)
    # (n, place, tap, group, channel), so that the channels of an image stay last
    rows = draft.add("Transpose", [joined], perm=[0, *range(2, rank + 2), 1])
    batch, depth = before[0], taps * each
    if group > 1:
        rows = draft.reshape(rows, batch, places * taps, group, each)
        rows = draft.add("Transpose", [rows], perm=[0, 2, 1, 3])
    rows = draft.reshape(rows, batch, group, places, depth)
    columns = draft.reshape(weights, group, kernel[0] // group, each, taps)
    columns = draft.add("Transpose", [columns], perm=[0, 3, 2, 1])
    columns = draft.reshape(columns, 1, group, depth, kernel[0] // group)
    product = draft.add("MatMul", [rows, columns])
    if group > 1:
        product = draft.add("Transpose", [product], perm=[0, 2, 1, 3])
    image = draft.reshape(product, batch, *after[2:], kernel[0])
    bias, back = node.input(2), [0, rank + 1, *range(1, rank + 1)]
    if bias:
        image = draft.add("Add", [image, bias])  # the channels are last
    draft.add("Transpose", [image], last=True, perm=back)
    return True


def _windows(draft: Draft, node: Node, after: tuple[int, ...]) -> str:
    """Returns what each element of a window reads, one image behind the other in the channels."""
    source = node.input(0)
    shape, kernel = draft.shapes[source], draft.shapes[node.input(1)][2:]
    rank = len(kernel)
    pads, strides, dilations = spans(node, list(shape[2:]), list(kernel))
    if any(pads):
        source = draft.add("Pad", [source, numbers(draft, [0, 0, *pads[:rank], 0, 0, *pads[rank:]], "pads")])
    parts = []
    for tap in np.ndindex(*kernel):
        starts = [place * step for place, step in zip(tap, dilations, strict=True)]
        ends = [start + (size - 1) * s + 1 for start, size, s in zip(starts, after[2:], strides, strict=True)]
        limits = (starts, ends, list(range(2, rank + 2)), strides)
        parts.append(draft.add("Slice", [source, *(numbers(draft, each, "bound") for each in limits)]))
    return draft.add("Concat", parts, axis=1) if len(parts) > 1 else parts[0]


def transposed_frames(draft: Draft, node: Node) -> bool:
    """A transposed convolution over three axes is one over two for each row of its kernel, laid between the frames."""
    weights, before, after = draft.constants.get(node.input(1)), draft.shapes[node.input(0)], draft.shapes[node.output]
    if weights is None or len(before) != 5 or "output_shape" in node.attributes:
        return False
    if node.get("auto_pad", "NOTSET") not in ("NOTSET", "VALID"):
        return False
    pads, strides, dilations = spans(node, list(before[2:]), list(weights.shape[2:]))
    extra, group = node.integers("output_padding", [0] * 3), int(node.get("group", 1))
    batch, channels, frames, high, wide = before
    inputs, each, depth, *kernel = weights.shape
    size = each * group * math.prod(after[3:])
    images = draft.add("Transpose", [node.input(0)], perm=[0, 2, 1, 3, 4])
    images = draft.reshape(images, batch * frames, channels, high, wide)
    flat = np.ascontiguousarray(np.moveaxis(weights, 2, 1)).reshape(inputs, depth * each, *kernel)
    settings: dict[str, Any] = {
        "pads": [*pads[1:3], *pads[4:]],
        "strides": strides[1:],
        "dilations": dilations[1:],
        "output_padding": extra[1:],
        "group": group,
    }
    rows = draft.add("ConvTranspose", [images, draft.store(flat, "weights")], **settings)
    rows = draft.reshape(rows, batch * frames, group, depth, size // group)
    last = (depth - 1) * dilations[0] // strides[0]
    phases: dict[int, str] = {}
    for tap in range(depth):
        limits = ([tap], [tap + 1], [2])
        part = draft.add("Slice", [rows, *(numbers(draft, bound, "bound") for bound in limits)])
        part = draft.reshape(part, batch, frames, size)
        behind, phase = divmod(tap * dilations[0], strides[0])
        if last:
            part = draft.add("Pad", [part, numbers(draft, [0, behind, 0, 0, last - behind, 0], "pads")])
        phases[phase] = draft.add("Add", [phases[phase], part]) if phase in phases else part
    whole = _interleaved(draft, phases, (batch, frames + last, strides[0], size))
    first, end = pads[0], pads[0] + after[2]
    if (missing := end - (frames + last) * strides[0]) > 0:
        whole = draft.add("Pad", [whole, numbers(draft, [0, 0, 0, 0, missing, 0], "pads")])
    whole = draft.add("Slice", [whole, *(numbers(draft, [bound], "bound") for bound in (first, end, 1))])
    whole = draft.reshape(whole, batch, after[2], *after[1:2], *after[3:])
    if bias := node.input(2):
        whole = draft.add("Add", [whole, draft.reshape(bias, after[1], 1, 1)])
    draft.add("Transpose", [whole], last=True, perm=[0, 2, 1, 3, 4])
    return True


def _interleaved(draft: Draft, phases: dict[int, str], shape: tuple[int, int, int, int]) -> str:
    """Returns frames that lie between one another, zeros where there are none."""
    batch, frames, count, size = shape
    if count == 1:
        return phases[0]
    parts = []
    for phase in range(count):
        part = phases.get(phase) or draft.store(np.zeros((batch, frames, size), np.float32), "zeros")
        parts.append(draft.reshape(part, batch, frames, 1, size))
    return draft.reshape(draft.add("Concat", parts, axis=2), batch, frames * count, size)
