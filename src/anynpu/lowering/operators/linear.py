"""Matrix products: FULLY_CONNECTED where one side is stored, BATCH_MATMUL where both are computed."""

from __future__ import annotations

import math

import numpy as np

from anynpu.lowering.lower import Axes, Lowering, plain
from anynpu.lowering.options import Add, BatchMatMul, FullyConnected, Mul
from anynpu.lowering.table import Node, operator
from anynpu.tensors import Array


def dense(at: Lowering, tensor: str, weights: Array, bias: Array | None, stem: str) -> str:
    """Returns FULLY_CONNECTED along the last axis of a tensor; weights are (out, in)."""
    *leading, _ = at.tensors[tensor].shape
    stored = at.tensors[tensor].data
    if stored is not None:
        return at.store(stored @ weights.T + (0 if bias is None else bias), stem)
    rows = at.reshape(tensor, (math.prod(leading), weights.shape[1]))
    offsets = np.zeros(weights.shape[0], np.float32) if bias is None else bias
    inputs = (rows, at.store(weights, f"{stem}/weights"), at.store(offsets, f"{stem}/bias"))
    shape = (math.prod(leading), weights.shape[0])
    result = at.emit("FULLY_CONNECTED", inputs, shape, FullyConnected(), stem)
    return at.reshape(result, (*leading, weights.shape[0]))


@operator("Gemm")
def gemm(at: Lowering, node: Node) -> None:
    """FULLY_CONNECTED with weights (out, in); alpha and beta go into weights and bias."""
    first, second, third = (node.input(place) for place in range(3))
    alpha, beta = float(node.get("alpha", 1.0)), float(node.get("beta", 1.0))
    first_turned, second_turned = bool(node.get("transA", 0)), bool(node.get("transB", 0))
    weights, bias = at.constant(second), at.constant(third) if third else None
    outputs = at.shape(node.output)[1]
    as_bias = bias is not None and bias.size in (1, outputs) and (bias.ndim < 2 or bias.shape[0] == 1)
    rows = (1, 0) if first_turned else (0, 1)
    if weights is not None and at.constant(first) is None:
        matrix = alpha * (weights if second_turned else weights.T)
        offsets = np.broadcast_to(beta * bias.reshape(-1), (outputs,)) if as_bias and bias is not None else None
        tensor = at.stored(first, rows)
        result = dense(at, tensor, np.asarray(matrix, np.float32), offsets, node.output)
    else:
        columns = (1, 0) if second_turned else (0, 1)
        result = batched(at, at.stored(first, rows), at.stored(second, columns), at.shape(node.output), node.output)
        as_bias = False
        if alpha != 1.0:
            result = at.emit("MUL", (result, at.value("alpha", alpha)), at.shape(node.output), Mul(), node.output)
    if third and not as_bias:
        addend = at.operand(third, (0, 1))
        if beta != 1.0:
            addend = at.emit("MUL", (addend, at.value("beta", beta)), at.tensors[addend].shape, Mul(), third)
        result = at.emit("ADD", (result, addend), at.shape(node.output), Add(), node.output)
    at.give(node.output, result)


def batched(at: Lowering, first: str, second: str, shape: tuple[int, ...], stem: str, **turned: bool) -> str:
    """Returns BATCH_MATMUL of two tensors."""
    return at.emit("BATCH_MATMUL", (first, second), shape, BatchMatMul(**turned), stem)


@operator("MatMul")
def matmul(at: Lowering, node: Node) -> None:
    """FULLY_CONNECTED where one side is a stored matrix, otherwise BATCH_MATMUL, which can read either side turned."""
    first, second = node.input(0), node.input(1)
    left, right = at.constant(first), at.constant(second)
    if right is not None and right.ndim == 2 and left is None and at.rank(first) >= 2:
        _by_stored(at, node, first, np.asarray(right.T, np.float32), turned=False)
    elif left is not None and left.ndim == 2 and right is None and at.rank(second) >= 2:
        _by_stored(at, node, second, np.asarray(left, np.float32), turned=True)
    else:
        _by_computed(at, node, first, second)


def _by_stored(at: Lowering, node: Node, data: str, weights: Array, turned: bool) -> None:
    """Multiplies along the last axis of `data`, or for a stored left side along the one before it."""
    rank = at.rank(data)
    along = rank - 2 if turned else rank - 1
    order = (*(axis for axis in at.axes(data) if axis != along), along)
    result = dense(at, at.stored(data, order), weights, None, node.output)
    at.give(node.output, result, order)


def _by_computed(at: Lowering, node: Node, first: str, second: str) -> None:
    shape = at.shape(node.output)
    if min(at.rank(first), at.rank(second)) < 2:
        # A side with one axis is a matrix of one row or column.
        left, right = at.shape(first), at.shape(second)
        a, b = at.stored(first, plain(len(left))), at.stored(second, plain(len(right)))
        a = at.reshape(a, (1, *left)) if len(left) == 1 else a
        b = at.reshape(b, (*right, 1)) if len(right) == 1 else b
        rows, columns = at.tensors[a].shape[-2], at.tensors[b].shape[-1]
        leading = np.broadcast_shapes(at.tensors[a].shape[:-2], at.tensors[b].shape[:-2])
        result = batched(at, a, b, (*leading, rows, columns), node.output)
        at.give(node.output, at.reshape(result, shape))
        return
    a, a_turned = _matrices(at, first, len(shape))
    b, b_turned = _matrices(at, second, len(shape))
    result = batched(at, a, b, shape, node.output, adj_x=a_turned, adj_y=b_turned)
    at.give(node.output, result)


def _matrices(at: Lowering, name: str, rank: int) -> tuple[str, bool]:
    """Returns a tensor of matrices and whether they are stored turned; what is stored turned is read turned."""
    own, axes = at.rank(name), at.axes(name)
    turned: Axes = (*range(own - 2), own - 1, own - 2)
    is_turned = at.constant(name) is None and axes == turned
    tensor = at.stored(name, turned if is_turned else plain(own))
    missing = rank - own
    return (at.reshape(tensor, (1,) * missing + at.tensors[tensor].shape) if missing else tensor), is_turned
