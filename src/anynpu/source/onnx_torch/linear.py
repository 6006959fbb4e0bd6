"""Matrix products."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from anynpu.source.onnx_torch.table import Node, operator


@operator("Gemm")
def gemm(node: Node, a: Tensor, b: Tensor, c: Tensor | None = None) -> Tensor:
    """alpha * A * B + beta * C with optional transposes; the common form becomes a linear layer."""
    alpha, beta = node.get("alpha", 1.0), node.get("beta", 1.0)
    left = torch.transpose(a, 0, 1) if node.get("transA", 0) else a
    units = node.shape(1)[0 if node.get("transB", 0) else 1]
    weight = b if node.get("transB", 0) else torch.transpose(b, 0, 1)
    if alpha == 1 and (c is None or (beta == 1 and node.shape(2) == (units,))):
        return F.linear(left, weight, c)
    result = F.linear(left, weight)
    result = result if alpha == 1 else result * alpha
    if c is None or beta == 0:
        return result
    return result + (c if beta == 1 else c * beta)


@operator("MatMul")
def matmul(node: Node, a: Tensor, b: Tensor) -> Tensor:
    """Matrix product, batched with broadcasting."""
    return torch.matmul(a, b)


@operator("Einsum")
def einsum(node: Node, *tensors: Tensor) -> Tensor:
    """Einstein summation."""
    return torch.einsum(node.get("equation"), *tensors)
