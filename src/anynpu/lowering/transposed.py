"""Transposed convolutions over three axes, which TFLite has no operator for, as ones over two."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from anynpu.lowering.drafts import Draft, spans
from anynpu.lowering.table import Node


def numbers(draft: Draft, values: list[int], what: str) -> str:
    """Returns the name of a new constant of whole numbers."""
    return draft.store(np.asarray(values, np.int64), what)


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
