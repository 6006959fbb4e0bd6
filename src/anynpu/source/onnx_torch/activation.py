"""Activations and softmax."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from anynpu.source.onnx_torch.table import Node, Refused, operator, same


@operator("LeakyRelu")
def leaky_relu(node: Node, x: Tensor) -> Tensor:
    """x, times alpha where it is negative."""
    return F.leaky_relu(x, node.get("alpha", 0.01))


@operator("PRelu")
def prelu(node: Node, x: Tensor, slope: Tensor) -> Tensor:
    """x, times a slope for each channel (or any shape that broadcasts) where it is negative."""
    return torch.where(x >= 0, x, x * slope)


@operator("ThresholdedRelu")
def thresholded_relu(node: Node, x: Tensor) -> Tensor:
    """x where it is above alpha, 0 elsewhere."""
    return F.threshold(x, node.get("alpha", 1.0), 0.0)


@operator("Clip")
def clip(node: Node, x: Tensor, low: Tensor | None = None, high: Tensor | None = None) -> Tensor:
    """x limited to [min, max]; either limit may be absent, constant or computed."""
    lows = node.get("min", node.number(1) if node.is_constant(1) else None)
    highs = node.get("max", node.number(2) if node.is_constant(2) else None)
    if lows is None and low is not None:
        x = torch.maximum(x, low)
    if highs is None and high is not None:
        limited = x if lows is None else torch.clamp(x, min=lows)
        return torch.minimum(limited, high)
    if lows is None and highs is None:
        return x
    if (lows, highs) == (0, 6) and node.value(0).dtype.is_floating_point:
        return F.relu6(x)
    return torch.clamp(x, min=lows, max=highs)


@operator("HardSigmoid")
def hard_sigmoid(node: Node, x: Tensor) -> Tensor:
    """alpha * x + beta limited to [0, 1]."""
    alpha, beta = node.get("alpha", 0.2), node.get("beta", 0.5)
    if math.isclose(alpha, 1 / 6, rel_tol=1e-6) and beta == 0.5:
        return F.hardsigmoid(x)
    return torch.clamp(x * alpha + beta, min=0.0, max=1.0)


@operator("Elu")
def elu(node: Node, x: Tensor) -> Tensor:
    """x, or alpha * (exp(x) - 1) where it is negative."""
    return F.elu(x, node.get("alpha", 1.0))


@operator("Selu")
def selu(node: Node, x: Tensor) -> Tensor:
    """ELU times gamma."""
    alpha, gamma = node.get("alpha", 1.6732632423543772), node.get("gamma", 1.0507009873554805)
    return torch.mul(F.elu(x, alpha), gamma)


@operator("Celu")
def celu(node: Node, x: Tensor) -> Tensor:
    """max(x, 0) + min(0, alpha * (exp(x / alpha) - 1))."""
    return F.celu(x, node.get("alpha", 1.0))


@operator("Gelu")
def gelu(node: Node, x: Tensor) -> Tensor:
    """Gaussian error linear unit, exact or with the tanh approximation."""
    return F.gelu(x, approximate=node.get("approximate", "none"))


@operator("Softmax")
def softmax(node: Node, x: Tensor) -> Tensor:
    """Softmax along one axis; before opset 13 over all axes from there on."""
    if _flattens(node):
        return torch.softmax(x.reshape(_matrix(node)), 1).reshape(node.shape())
    return torch.softmax(x, _axis(node))


@operator("LogSoftmax")
def log_softmax(node: Node, x: Tensor) -> Tensor:
    """Logarithm of the softmax along one axis; before opset 13 over all axes from there on."""
    if _flattens(node):
        return torch.log_softmax(x.reshape(_matrix(node)), 1).reshape(node.shape())
    return torch.log_softmax(x, _axis(node))


def _axis(node: Node) -> int:
    if node.rank() == 0:
        raise Refused(f"{node.op} of a scalar is not supported")
    return node.axis(1 if node.opset < 13 else -1)


def _flattens(node: Node) -> bool:
    return node.opset < 13 and _axis(node) != node.rank() - 1


def _matrix(node: Node) -> tuple[int, int]:
    axis = _axis(node)
    return math.prod(node.shape()[:axis]), math.prod(node.shape()[axis:])


same("Relu", F.relu, "max(x, 0).")
same("Sigmoid", torch.sigmoid, "1 / (1 + exp(-x)).")
same("Tanh", torch.tanh, "Hyperbolic tangent.")
same("HardSwish", F.hardswish, "x times the hard sigmoid of x.")
same("Softplus", F.softplus, "log(1 + exp(x)).")
same("Softsign", F.softsign, "x / (1 + |x|).")
same("Mish", F.mish, "x times the hyperbolic tangent of its softplus.")
