"""Writes ONNX operators that read or write at given places as others: samples of an image, sums of windows, writes by
number.

Where the places are computed, a place becomes its weights: nothing at every stored position but those next to it. A
product with these weights reads there, on every chip, without a number that integers would have to hold exactly.
"""

from __future__ import annotations

import math

import numpy as np

from anynpu.lowering.drafts import Draft
from anynpu.lowering.table import Node
from anynpu.tensors import Array

MOST_WEIGHTS = 1 << 22
"""How many weights the computed places of one operator may have."""


def grid_sample(draft: Draft, node: Node) -> bool:
    """Samples at places, bilinear or nearest: elements by their weights, stored, or computed from how far they are."""
    grid, shape = draft.constants.get(node.input(1)), draft.shapes[node.input(0)]
    mode, padding = node.get("mode", "linear"), node.get("padding_mode", "zeros")
    if len(shape) != 4 or mode not in ("bilinear", "linear", "nearest"):
        return False
    if grid is None or shape[0] != 1:
        return padding != "reflection" and _sampled(draft, node, mode == "nearest", padding == "border")
    sizes = np.asarray([shape[3], shape[2]])
    factors, offsets = _in_pixels(node, sizes)
    at = grid.reshape(-1, 2).astype(np.float64) * factors + offsets
    if padding == "border":
        at = np.clip(at, 0, sizes - 1)
    if padding == "reflection":
        at = _reflected(at, sizes, bool(node.get("align_corners", 0)))
    low = np.rint(at) if mode == "nearest" else np.floor(at)
    part = at - low
    rows = draft.reshape(node.input(0), 1, shape[1], shape[2] * shape[3])
    total = ""
    for dx, dy in ((0, 0),) if mode == "nearest" else ((0, 0), (1, 0), (0, 1), (1, 1)):
        place = low + np.asarray([dx, dy])
        inside = np.all((place >= 0) & (place < sizes), axis=1)
        weights = np.abs(1 - dx - part[:, 0]) * np.abs(1 - dy - part[:, 1]) if mode != "nearest" else np.ones(len(at))
        flat = np.clip(place, 0, sizes - 1).astype(np.int64)
        numbers = draft.store(flat[:, 1] * shape[3] + flat[:, 0], "places")
        taken = draft.add("Gather", [rows, numbers], axis=2)
        weighted = draft.add("Mul", [taken, draft.store((weights * inside).astype(np.float32), "weights")])
        total = draft.add("Add", [total, weighted]) if total else weighted
    draft.reshape(total, *draft.shapes[node.output], last=True)
    return True


def _reflected(at: Array, sizes: Array, corners: bool) -> Array:
    """Returns places outside of an image folded back at its borders: the middles of its last pixels, or their ends."""
    first, span = (0.0, sizes - 1.0) if corners else (-0.5, sizes * 1.0)
    beyond = np.mod(at - first, 2 * np.maximum(span, 1e-9))
    folded = first + np.where(beyond > span, 2 * span - beyond, beyond)
    return np.asarray(np.clip(folded, 0, sizes - 1))


def _in_pixels(node: Node, sizes: Array) -> tuple[Array, Array]:
    """Returns what turns places from -1 to 1 into numbers of pixels: a factor and an offset for each axis."""
    if int(node.get("align_corners", 0)):
        return (sizes - 1) / 2, (sizes - 1) / 2
    return sizes / 2, (sizes - 1) / 2


def _sampled(draft: Draft, node: Node, nearest: bool, border: bool) -> bool:
    """Gives samples at computed places: what each column and row weighs, multiplied, and a product with the image."""
    n, channels, height, width = draft.shapes[node.input(0)]
    places = draft.shapes[node.input(1)]
    count = math.prod(places[1:3])
    if height * width * count > MOST_WEIGHTS:
        return False
    sizes = np.asarray([width, height])
    flat = draft.reshape(node.input(1), n, count, 2)
    turned = draft.add("Transpose", [flat], perm=[0, 2, 1])
    weights = []
    for axis, (factor, offset) in enumerate(zip(*_in_pixels(node, sizes), strict=True)):
        bounds = [draft.store(np.asarray([value], np.int64), "bound") for value in (axis, axis + 1, 1)]
        part = draft.add("Slice", [turned, *bounds])
        pixels = draft.add("Mul", [part, draft.store(np.asarray(factor, np.float32), "factor")])
        pixels = draft.add("Add", [pixels, draft.store(np.asarray(offset, np.float32), "offset")])
        if border:
            limits = [draft.store(np.asarray(value, np.float32), "limit") for value in (0, sizes[axis] - 1)]
            pixels = draft.add("Clip", [pixels, *limits])
        if nearest:
            pixels = draft.add("Round", [pixels])
        weights.append(draft.near(pixels, np.arange(sizes[axis], dtype=np.float32).reshape(1, -1, 1)))
    columns = draft.reshape(weights[0], n, 1, width, count)
    rows = draft.reshape(weights[1], n, height, 1, count)
    both = draft.reshape(draft.add("Mul", [rows, columns]), n, height * width, count)
    image = draft.reshape(node.input(0), n, channels, height * width)
    draft.reshape(draft.add("MatMul", [image, both]), *draft.shapes[node.output], last=True)
    return True


def col_to_image(draft: Draft, node: Node) -> bool:
    """Windows laid over an image and added: moved axes, or a transposed convolution whose weights are ones."""
    image, block = (draft.constants.get(node.input(place)) for place in (1, 2))
    if image is None or block is None or len(image) != 2:
        return False
    n, _, _ = draft.shapes[node.input(0)]
    size, kernel = [int(each) for each in image], [int(each) for each in block]
    strides, dilations = node.integers("strides", [1, 1]), node.integers("dilations", [1, 1])
    pads, channels = node.integers("pads", [0] * 4), draft.shapes[node.output][1]
    extents = [d * (k - 1) + 1 for d, k in zip(dilations, kernel, strict=True)]
    counts = [(size[a] + pads[a] + pads[a + 2] - extents[a]) // strides[a] + 1 for a in range(2)]
    apart = strides == kernel and dilations == [1, 1] and not any(pads)
    if apart and size == [count * k for count, k in zip(counts, kernel, strict=True)]:
        windows = draft.reshape(node.input(0), n, channels, *kernel, *counts)
        moved = draft.add("Transpose", [windows], perm=[0, 1, 4, 2, 5, 3])
        draft.reshape(moved, *draft.shapes[node.output], last=True)
        return True
    taps = math.prod(kernel)
    weights = np.tile(np.eye(taps, dtype=np.float32).reshape(taps, 1, *kernel), (channels, 1, 1, 1))
    rest = [size[a] - ((counts[a] - 1) * strides[a] - pads[a] - pads[a + 2] + extents[a]) for a in range(2)]
    windows = draft.reshape(node.input(0), n, channels * taps, *counts)
    inputs = [windows, draft.store(weights, "taps")]
    settings = {"strides": strides, "dilations": dilations, "pads": pads, "output_padding": rest}
    draft.add("ConvTranspose", inputs, last=True, group=channels, **settings)
    return True


def scatter_elements(draft: Draft, node: Node) -> bool:
    """Writes by computed numbers: each number as a row of zeros and a one, times what it writes, added up."""
    numbers, shape = node.input(1), draft.shapes[node.input(0)]
    written = draft.shapes[numbers]
    axis, reduction = int(node.get("axis", 0)) % len(shape), node.get("reduction", "none")
    rest = [size for place, size in enumerate(written) if place != axis]
    if numbers in draft.constants or reduction not in ("none", "add"):
        return False
    if node.output not in draft.reals:
        return False
    if rest != [size for place, size in enumerate(shape) if place != axis]:
        return False  # what no number belongs to stays as it is
    if math.prod(written) * shape[axis] > MOST_WEIGHTS:
        return False
    last = [*(place for place in range(len(shape)) if place != axis), axis]
    depth, values = draft.store(np.asarray(shape[axis]), "depth"), draft.store(np.asarray([0, 1], np.float32), "values")
    chosen = draft.add("OneHot", [draft.add("Transpose", [numbers], perm=last), depth, values])
    old = draft.add("Transpose", [node.input(0)], perm=last)
    if reduction == "none":
        # Of several that write to one place, the last one counts
        one = draft.store(np.asarray(1, np.float32), "one")
        behind = draft.store(np.triu(np.ones((written[axis],) * 2, np.float32), 1), "behind")
        last_one = draft.add("Relu", [draft.add("Sub", [one, draft.add("MatMul", [behind, chosen])])])
        chosen = draft.add("Mul", [chosen, last_one])
        if np.any(draft.constants.get(node.input(0), 1)):
            hit = draft.add("ReduceSum", [chosen, draft.store(np.asarray([len(shape) - 1]), "axes")], keepdims=0)
            old = draft.add("Mul", [old, draft.add("Sub", [one, hit])])
    new = draft.reshape(draft.add("Transpose", [node.input(2)], perm=last), *rest, 1, written[axis])
    total = draft.reshape(draft.add("MatMul", [new, chosen]), *rest, shape[axis])
    draft.add("Transpose", [draft.add("Add", [old, total])], last=True, perm=np.argsort(last).tolist())
    return True


def gather_elements(draft: Draft, node: Node) -> bool:
    """Rows that one list of numbers names, repeated for the elements of a row, are gathered whole."""
    shape, wanted, maker = draft.shapes[node.input(0)], draft.shapes[node.output], draft.makers.get(node.input(1))
    if maker is None or maker.op_type not in _REPEATING:
        return False
    axis, held = int(node.get("axis", 0)) % len(shape), draft.shapes.get(maker.input[0], ())
    aligned = (1,) * (len(shape) - len(held)) + held
    if aligned != tuple(size if place == axis else 1 for place, size in enumerate(wanted)):
        return False
    if [*wanted[:axis], *wanted[axis + 1 :]] != [*shape[:axis], *shape[axis + 1 :]]:
        return False
    numbers = draft.reshape(maker.input[0], wanted[axis])
    draft.add("Gather", [node.input(0), numbers], last=True, axis=axis)
    return True


_REPEATING = ("Expand", "Tile")
"""What repeats numbers along other axes."""
