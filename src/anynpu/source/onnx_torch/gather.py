"""Elements picked by index."""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from anynpu.source.onnx_torch.table import Node, Refused, operator


@operator("Gather")
def gather(node: Node, x: Tensor, indices: Tensor) -> Tensor:
    """Slices along one axis; a run-time lookup in a table of rows becomes an embedding."""
    axis = node.axis(0)
    shape = [*node.shape()[:axis], *node.shape(1), *node.shape()[axis + 1 :]]
    if node.is_constant(1):
        size, constant = node.shape()[axis], node.array(1).astype(np.int64)
        if constant.size and not (-size <= constant.min() and constant.max() < size):
            raise Refused(f"Gather index out of range for a dimension of {size}")
        picked = np.asarray(constant % size, np.int64)
        if node.rank(1) == 0:
            return x.select(axis, int(picked))
        index = node.constant(picked.reshape(-1))
    else:
        if node.is_constant(0) and node.rank() == 2 and axis == 0:
            return F.embedding(indices, x)  # refuses negative indices when it runs
        index = _wrapped(indices, node.shape()[axis]).reshape([-1])
    return torch.index_select(x, axis, index).reshape(shape)


def _wrapped(indices: Tensor, size: int) -> Tensor:
    return torch.where(indices < 0, indices + size, indices)


@operator("GatherElements")
def gather_elements(node: Node, x: Tensor, indices: Tensor) -> Tensor:
    """Elements along one axis, one index for each."""
    axis = node.axis(0)
    return torch.gather(x, axis, _wrapped(indices, node.shape()[axis]).to(torch.int64))


@operator("OneHot")
def one_hot(node: Node, indices: Tensor, depth: Tensor, values: Tensor) -> Tensor:
    """One of two constant values where the class number is the index, the other elsewhere."""
    count, axis = int(node.number(1)), int(node.get("axis", -1))
    rank = node.rank() + 1
    axis = axis + rank if axis < 0 else axis
    off, on = node.array(2).reshape(-1)
    classes = np.arange(count).reshape([count if at == axis else 1 for at in range(rank)])
    wrapped = _wrapped(indices, count).unsqueeze(axis)
    matches = torch.eq(wrapped, node.constant(classes.astype(node_type(node))))
    return torch.where(matches, node.constant(np.asarray(on)), node.constant(np.asarray(off)))


def node_type(node: Node) -> str:
    """The numpy name of the element type of the first input."""
    return str(node.value(0).dtype).removeprefix("torch.")
