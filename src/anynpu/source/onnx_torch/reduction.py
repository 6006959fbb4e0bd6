"""Reductions over axes."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from anynpu.source.onnx_torch.table import Node, front, operator


def _axes(node: Node) -> list[int]:
    axes = node.axes()
    if not axes:
        return [] if node.get("noop_with_empty_axes", 0) else list(range(node.rank()))
    return [front(axis, node.rank()) for axis in axes]


def _keep(node: Node) -> bool:
    return bool(node.get("keepdims", 1))


@operator("ReduceMean")
def reduce_mean(node: Node, x: Tensor, axes: Tensor | None = None) -> Tensor:
    """Mean over axes."""
    dims = _axes(node)
    return torch.mean(x, dim=dims, keepdim=_keep(node)) if dims else x


@operator("ReduceSum")
def reduce_sum(node: Node, x: Tensor, axes: Tensor | None = None) -> Tensor:
    """Sum over axes."""
    dims = _axes(node)
    return torch.sum(x, dim=dims, keepdim=_keep(node), dtype=node.value(0).dtype) if dims else x


@operator("ReduceMax")
def reduce_max(node: Node, x: Tensor, axes: Tensor | None = None) -> Tensor:
    """Largest element over axes."""
    dims = _axes(node)
    return torch.amax(x, dim=dims, keepdim=_keep(node)) if dims else x


@operator("ReduceMin")
def reduce_min(node: Node, x: Tensor, axes: Tensor | None = None) -> Tensor:
    """Smallest element over axes."""
    dims = _axes(node)
    return torch.amin(x, dim=dims, keepdim=_keep(node)) if dims else x


@operator("ReduceProd")
def reduce_prod(node: Node, x: Tensor, axes: Tensor | None = None) -> Tensor:
    """Product over axes."""
    for dim in sorted(_axes(node), reverse=True):
        x = torch.prod(x, dim=dim, keepdim=_keep(node), dtype=node.value(0).dtype)
    return x


@operator("ReduceL1")
def reduce_l1(node: Node, x: Tensor, axes: Tensor | None = None) -> Tensor:
    """Sum of absolute values over axes."""
    return reduce_sum(node, torch.abs(x))


@operator("ReduceL2")
def reduce_l2(node: Node, x: Tensor, axes: Tensor | None = None) -> Tensor:
    """Square root of the sum of squares over axes."""
    return torch.sqrt(reduce_sum(node, torch.mul(x, x)))


@operator("ReduceSumSquare")
def reduce_sum_square(node: Node, x: Tensor, axes: Tensor | None = None) -> Tensor:
    """Sum of squares over axes."""
    return reduce_sum(node, torch.mul(x, x))


@operator("ReduceLogSum")
def reduce_log_sum(node: Node, x: Tensor, axes: Tensor | None = None) -> Tensor:
    """Logarithm of the sum over axes."""
    return torch.log(reduce_sum(node, x))


@operator("ReduceLogSumExp")
def reduce_log_sum_exp(node: Node, x: Tensor, axes: Tensor | None = None) -> Tensor:
    """Logarithm of the sum of exponentials over axes."""
    dims = _axes(node)
    return torch.logsumexp(x, dim=dims, keepdim=_keep(node)) if dims else x


@operator("ArgMax")
def arg_max(node: Node, x: Tensor) -> Tensor:
    """Index of the first largest element along one axis; select_last_index is refused."""
    node.only("select_last_index", 0)
    return _first(node, x, torch.argmax, torch.amax)


@operator("ArgMin")
def arg_min(node: Node, x: Tensor) -> Tensor:
    """Index of the first smallest element along one axis; select_last_index is refused."""
    node.only("select_last_index", 0)
    return _first(node, x, torch.argmin, torch.amin)


def _first(node: Node, x: Tensor, find: Callable[..., Tensor], best: Callable[..., Tensor]) -> Tensor:
    axis = node.axis(0)
    if node.value(0).dtype == torch.int64:  # TFLite has no ARG_MAX of int64: text towers look so for their end token
        x, find = (x == best(x, dim=axis, keepdim=True)).to(torch.int32), torch.argmax
    return find(x, dim=axis, keepdim=_keep(node))


@operator("CumSum")
def cumulative_sum(node: Node, x: Tensor, axis: Tensor) -> Tensor:
    """Running sum along a constant axis, forwards or in reverse; exclusive sums are refused."""
    node.only("exclusive", 0)
    dim = front(int(node.number(1)), node.rank())
    if not node.get("reverse", 0):
        return torch.cumsum(x, dim=dim, dtype=node.value(0).dtype)
    return torch.flip(torch.cumsum(torch.flip(x, [dim]), dim=dim, dtype=node.value(0).dtype), [dim])
