"""Shapes and layouts: the operators that move elements without changing them."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from anynpu.source.onnx_torch.table import Node, Refused, front, operator


@operator("Reshape")
def reshape(node: Node, x: Tensor, shape: Tensor | None = None) -> Tensor:
    """A constant new shape, with 0 for a kept and -1 for an inferred dimension."""
    sizes = node.ints(1)
    if not node.get("allowzero", 0):
        sizes = [node.shape()[at] if size == 0 else size for at, size in enumerate(sizes)]
    if -1 in sizes:
        known = math.prod([size for size in sizes if size != -1])
        sizes[sizes.index(-1)] = math.prod(node.shape()) // max(known, 1)
    return x.reshape(sizes)


@operator("Flatten")
def flatten(node: Node, x: Tensor) -> Tensor:
    """A matrix: the dimensions before `axis` and those from there on."""
    axis = int(node.get("axis", 1))
    axis = axis + node.rank() if axis < 0 else axis
    return x.reshape([math.prod(node.shape()[:axis]), math.prod(node.shape()[axis:])])


@operator("Transpose")
def transpose(node: Node, x: Tensor) -> Tensor:
    """Dimensions in another order, reversed by default."""
    return x.permute(list(node.get("perm", range(node.rank())[::-1])))


@operator("Squeeze")
def squeeze(node: Node, x: Tensor, axes: Tensor | None = None) -> Tensor:
    """The shape without dimensions of size one."""
    shape = node.shape()
    stated = node.axes()
    drop = (
        [at for at, size in enumerate(shape) if size == 1] if stated is None else [front(a, len(shape)) for a in stated]
    )
    if any(shape[at] != 1 for at in drop):
        raise Refused("Squeeze of a dimension that is not one")
    return x.reshape([size for at, size in enumerate(shape) if at not in drop])


@operator("Unsqueeze")
def unsqueeze(node: Node, x: Tensor, axes: Tensor | None = None) -> Tensor:
    """The shape with dimensions of size one put in."""
    stated = node.axes() or []
    rank = node.rank() + len(stated)
    added = {front(axis, rank) for axis in stated}
    rest = iter(node.shape())
    return x.reshape([1 if at in added else next(rest) for at in range(rank)])


@operator("Expand")
def expand(node: Node, x: Tensor, shape: Tensor) -> Tensor:
    """Broadcast to a constant shape."""
    return x.expand(list(np.broadcast_shapes(node.shape(), tuple(node.ints(1)))))


@operator("Tile")
def tile(node: Node, x: Tensor, repeats: Tensor) -> Tensor:
    """Copies side by side, a constant number in each dimension."""
    return x.repeat(node.ints(1))


@operator("Concat")
def concat(node: Node, *tensors: Tensor) -> Tensor:
    """Tensors joined along one axis."""
    if len(tensors) == 1:
        return tensors[0]
    return torch.cat(list(tensors), dim=node.axis(0))


@operator("Split")
def split(node: Node, x: Tensor, sizes: Tensor | None = None) -> Sequence[Tensor]:
    """Pieces along one axis: equal, of constant sizes, or of a stated number."""
    axis, count = node.axis(0), len(node.proto.output)
    if node.has(1) or "split" in node.attributes:
        lengths = node.ints(1) if node.has(1) else list(node.get("split"))
    else:
        size = node.shape()[axis]
        chunk = -(-size // int(node.get("num_outputs", count)))
        lengths = [min(chunk, size - start) for start in range(0, size, chunk)]
    if len(lengths) != count:
        raise Refused(f"Split into {len(lengths)} pieces does not fit {count} outputs")
    pieces = torch.split(x, lengths, dim=axis)
    return [pieces[at] for at in range(count)]


@operator("Slice")
def slice_(node: Node, x: Tensor, *operands: Tensor | None) -> Tensor:
    """A part with constant starts, ends and steps; negative steps reverse."""
    starts, ends = node.ints(1), node.ints(2)
    axes = node.ints(3) if node.has(3) else list(range(len(starts)))
    steps = node.ints(4) if node.has(4) else [1] * len(starts)
    parts = [slice(None)] * node.rank()
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        dim = front(axis, node.rank())
        size = node.shape()[dim]
        indices = range(*slice(start, end, step).indices(size))
        if not indices:
            parts[dim] = slice(0, 0)
            continue
        if step < 0:
            x = torch.flip(x, [dim])
            indices = range(size - 1 - indices[0], size - indices[-1], -step)
        if indices != range(size):
            parts[dim] = slice(indices[0], indices[-1] + 1, abs(step))
    if all(part == slice(None) for part in parts):
        return x
    return x[tuple(parts)]


@operator("Pad")
def pad(node: Node, x: Tensor, *operands: Tensor | None) -> Tensor:
    """Constant padding in any dimension; reflect and edge padding of up to three last dimensions."""
    rank, mode = node.rank(), node.get("mode", "constant")
    amounts = node.ints(1)
    axes = [front(axis, rank) for axis in node.ints(3)] if node.has(3) else list(range(rank))
    before, after = [0] * rank, [0] * rank
    for at, axis in enumerate(axes):
        before[axis], after[axis] = amounts[at], amounts[at + len(axes)]
    pairs = list(zip(before, after, strict=True))
    while pairs and pairs[0] == (0, 0):
        pairs.pop(0)
    flat = [amount for pair in reversed(pairs) for amount in pair]
    if not flat:
        return x
    if mode == "constant":
        return F.pad(x, flat, value=node.number(2) if node.has(2) else 0)
    if mode not in ("reflect", "edge") or min(flat) < 0 or len(pairs) > 3:
        raise Refused(f"Pad with mode={mode} and pads={amounts} has no exact equivalent in torch")
    # torch wants exactly two dimensions in front of those that are padded.
    lead, last = node.shape()[: rank - len(pairs)], list(node.shape()[rank - len(pairs) :])
    rows = x if len(lead) == 2 else x.reshape([1, math.prod(lead), *last])
    padded = F.pad(rows, flat, mode="reflect" if mode == "reflect" else "replicate")
    sizes = [size + flat[-2 - 2 * at] + flat[-1 - 2 * at] for at, size in enumerate(last)]
    return padded if len(lead) == 2 else padded.reshape([*lead, *sizes])


@operator("DepthToSpace")
def depth_to_space(node: Node, x: Tensor) -> Tensor:
    """Channels moved into blocks of pixels, in DCR or CRD order."""
    block = int(node.get("blocksize"))
    if node.get("mode", "DCR") == "CRD":
        return F.pixel_shuffle(x, block)
    batch, channels, height, width = node.shape()
    parts = x.reshape([batch, block, block, channels // block**2, height, width])
    return parts.permute([0, 3, 4, 1, 5, 2]).reshape([batch, channels // block**2, height * block, width * block])


@operator("SpaceToDepth")
def space_to_depth(node: Node, x: Tensor) -> Tensor:
    """Blocks of pixels moved into channels."""
    block = int(node.get("blocksize"))
    batch, channels, height, width = node.shape()
    parts = x.reshape([batch, channels, height // block, block, width // block, block])
    return parts.permute([0, 3, 5, 1, 2, 4]).reshape([batch, channels * block**2, height // block, width // block])


@operator("Identity")
def identity(node: Node, x: Tensor) -> Tensor:
    """The tensor itself."""
    return x


@operator("Dropout")
def dropout(node: Node, x: Tensor, *operands: Tensor | None) -> Tensor:
    """The tensor itself: inference drops nothing; training mode is refused."""
    if node.has(2) and node.number(2):
        raise Refused("Dropout in training mode is not supported")
    return x


@operator("Trilu")
def trilu(node: Node, x: Tensor, diagonal: Tensor | None = None) -> Tensor:
    """The upper or lower triangle from a constant diagonal on."""
    k = int(node.number(1)) if node.has(1) else 0
    return torch.triu(x, k) if node.get("upper", 1) else torch.tril(x, k)
