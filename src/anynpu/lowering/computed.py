"""Convolutions whose weights or biases are computed from the input, as products: no TFLite kernel takes them."""

from __future__ import annotations

import math
from itertools import product

import numpy as np

from anynpu.lowering.drafts import Draft, spans
from anynpu.lowering.table import Node

MOST_TAPS = 128
"""How many elements a window may have: each is a slice of the image."""
MOST_UNFOLDED = 1 << 22
"""How many values all windows may have together where they become a matrix."""


def computed_convolution(draft: Draft, node: Node) -> bool:
    """A convolution with computed weights is a product with its windows; a computed bias is added behind it."""
    weights, bias = node.input(1), node.input(2)
    if weights in draft.constants:
        if not bias or bias in draft.constants:
            return False
        add_bias(draft, draft.add("Conv", [node.input(0), weights], **node.attributes), bias)
        return True
    (_, channels, *size), (outputs, inner, *kernel) = draft.shapes[node.input(0)], draft.shapes[weights]
    if math.prod(kernel) > MOST_TAPS or node.input(0) not in draft.reals or weights not in draft.reals:
        return False
    apart, places = inner == 1 and outputs == channels, math.prod(draft.shapes[node.output][2:])
    if not apart and draft.shapes[node.input(0)][0] * channels * math.prod(kernel) * places > MOST_UNFOLDED:
        return False
    parts = elements_of_windows(draft, node, size, kernel)
    result = by_channels(draft, weights, parts) if apart else by_products(draft, node, weights, parts)
    if bias:
        add_bias(draft, result, bias)
    else:
        draft.reshape(result, *draft.shapes[node.output], last=True)
    return True


def elements_of_windows(draft: Draft, node: Node, size: list[int], kernel: list[int]) -> list[str]:
    """Returns for each element of the window what it meets at all places."""
    pads, strides, dilations = spans(node, size, kernel)
    rank, after = len(size), draft.shapes[node.output][2:]
    source = node.input(0)
    if any(pads):
        widths = [0, 0, *pads[:rank], 0, 0, *pads[rank:]]
        source = draft.add("Pad", [source, draft.store(np.asarray(widths, np.int64), "pads")])
    if kernel == strides == [1] * rank:
        return [source]
    axes = draft.store(np.arange(2, 2 + rank), "axes")
    steps = draft.store(np.asarray(strides, np.int64), "steps")
    parts = []
    for place in product(*map(range, kernel)):
        starts = [at * dilation for at, dilation in zip(place, dilations, strict=True)]
        ends = [start + (count - 1) * step + 1 for start, count, step in zip(starts, after, strides, strict=True)]
        bounds = [draft.store(np.asarray(each, np.int64), "bound") for each in (starts, ends)]
        parts.append(draft.add("Slice", [source, *bounds, axes, steps]))
    return parts


def by_channels(draft: Draft, weights: str, parts: list[str]) -> str:
    """Returns the sum of the elements, each times the weight of its channel."""
    channels, _, *kernel = draft.shapes[weights]
    flat = draft.reshape(weights, channels, math.prod(kernel))
    total = ""
    for number, part in enumerate(parts):
        bounds = [draft.store(np.asarray([each], np.int64), "bound") for each in (number, number + 1, 1)]
        weight = draft.reshape(draft.add("Slice", [flat, *bounds]), 1, channels, *(1 for _ in kernel))
        term = draft.add("Mul", [part, weight])
        total = draft.add("Add", [total, term]) if total else term
    return total


def by_products(draft: Draft, node: Node, weights: str, parts: list[str]) -> str:
    """Returns the product of the weights, as rows, with the elements of each window as a column."""
    batch, channels = draft.shapes[node.input(0)][:2]
    outputs, inner, *kernel = draft.shapes[weights]
    after, groups, taps = draft.shapes[node.output], channels // inner, math.prod(kernel)
    count = math.prod(after[2:])
    columns = [draft.reshape(part, batch, groups, inner, 1, count) for part in parts]
    joined = draft.add("Concat", columns, axis=3) if taps > 1 else columns[0]
    windows = draft.reshape(joined, batch, groups, inner * taps, count)
    rows = draft.reshape(weights, 1, groups, outputs // groups, inner * taps)
    return draft.reshape(draft.add("MatMul", [rows, windows]), *after)


def add_bias(draft: Draft, result: str, bias: str) -> None:
    rank, (count,) = len(draft.shapes[draft.result]), draft.shapes[bias]
    draft.add("Add", [result, draft.reshape(bias, 1, count, *[1] * (rank - 2))], last=True)
