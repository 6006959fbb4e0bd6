"""Activations: as one TFLite operator where there is one, otherwise as few as give the same."""

from __future__ import annotations

import numpy as np

from anynpu.lowering.lower import Lowering
from anynpu.lowering.operators.arithmetic import function
from anynpu.lowering.operators.reduction import reduced, summed
from anynpu.lowering.options import Add, Gelu, LeakyRelu, Mul, Softmax, Sub
from anynpu.lowering.table import Node, Refused, operator


@operator("Relu", "Sigmoid", "Tanh", "HardSwish")
def activation(at: Lowering, node: Node) -> None:
    """RELU, LOGISTIC, TANH or HARD_SWISH; an activation behind an operator that can apply it is fused later."""
    if at.dtypes[node.input(0)].startswith("int"):
        _clipped(at, node, 0, None)
        return
    function(at, node, {"Sigmoid": "LOGISTIC", "HardSwish": "HARD_SWISH"}.get(node.op, node.op.upper()))


@operator("Elu", "Selu")
def elu(at: Lowering, node: Node) -> None:
    """The rectified input plus alpha * (exp(min(x, 0)) - 1), times gamma: LiteRT's reference kernels lack ELU."""
    axes = at.axes(node.input(0))
    tensor = at.stored(node.input(0), axes)
    shape = at.tensors[tensor].shape

    def times(name: str, factor: float, stem: str) -> str:
        return name if factor == 1.0 else at.emit("MUL", (name, at.value(stem, factor)), shape, Mul(), node.output)

    below = at.emit("MINIMUM", (tensor, at.value("zero", 0.0)), shape, stem=node.output)
    power = at.emit("EXP", (below,), shape, stem=node.output)
    part = at.emit("SUB", (power, at.value("one", 1.0)), shape, Sub(), node.output)
    part = times(part, float(node.get("alpha", 1.0 if node.op == "Elu" else 1.67326319217681884765625)), "alpha")
    total = at.emit("ADD", (at.emit("RELU", (tensor,), shape, stem=node.output), part), shape, Add(), node.output)
    gamma = 1.0 if node.op == "Elu" else float(node.get("gamma", 1.05070102214813232421875))
    at.give(node.output, times(total, gamma, "gamma"), axes)


@operator("Softplus", "Mish")
def softplus(at: Lowering, node: Node) -> None:
    """The rectified input plus log(1 + exp(-|x|)), which does not overflow; Mish is x times its TANH."""
    axes = at.axes(node.input(0))
    tensor = at.stored(node.input(0), axes)
    shape = at.tensors[tensor].shape
    size = at.emit("ABS", (tensor,), shape, stem=node.output)
    power = at.emit("EXP", (at.emit("MUL", (size, at.value("minus", -1.0)), shape, Mul(), node.output),), shape)
    above = at.emit("ADD", (power, at.value("one", 1.0)), shape, Add(), node.output)
    logarithm = at.emit("LOG", (above,), shape, stem=node.output)
    result = at.emit("ADD", (at.emit("RELU", (tensor,), shape), logarithm), shape, Add(), node.output)
    if node.op == "Mish":
        bend = at.emit("TANH", (result,), shape, stem=node.output)
        result = at.emit("MUL", (tensor, bend), shape, Mul(), node.output)
    at.give(node.output, result, axes)


@operator("Clip")
def clip(at: Lowering, node: Node) -> None:
    """RELU6 or RELU where the limits are theirs, otherwise MAXIMUM and MINIMUM."""
    if any(node.input(place) and at.constant(node.input(place)) is None for place in (1, 2)):
        axes = at.axes(node.input(0))
        tensor = at.stored(node.input(0), axes)
        shape = at.tensors[tensor].shape
        for place, limit in ((1, "MAXIMUM"), (2, "MINIMUM")):
            if node.input(place):
                tensor = at.emit(limit, (tensor, at.operand(node.input(place), axes)), shape, stem=node.output)
        at.give(node.output, tensor, axes)
        return
    low, high = (_limit(at, node, place, name) for place, name in ((1, "min"), (2, "max")))
    kinds: dict[tuple[float | None, float | None], str] = {(0.0, 6.0): "RELU6", (0.0, None): "RELU"}
    kind = kinds.get((low, high))
    if kind and not at.dtypes[node.input(0)].startswith("int"):
        function(at, node, kind)
    else:
        _clipped(at, node, low, high)


def _clipped(at: Lowering, node: Node, low: float | None, high: float | None) -> None:
    axes = at.axes(node.input(0))
    tensor = at.stored(node.input(0), axes)
    shape = at.tensors[tensor].shape
    if low is not None:
        tensor = at.emit("MAXIMUM", (tensor, at.value("low", low, tensor)), shape, stem=node.output)
    if high is not None:
        tensor = at.emit("MINIMUM", (tensor, at.value("high", high, tensor)), shape, stem=node.output)
    at.give(node.output, tensor, axes)


def _limit(at: Lowering, node: Node, place: int, name: str) -> float | None:
    if name in node.attributes:
        value = float(node.attributes[name])
    elif not node.input(place):
        return None
    else:
        value = float(at.constants[node.input(place)].reshape(-1)[0])
    return None if abs(value) >= 3e38 else value


@operator("LeakyRelu")
def leaky_relu(at: Lowering, node: Node) -> None:
    """LEAKY_RELU."""
    function(at, node, "LEAKY_RELU", LeakyRelu(float(node.get("alpha", 0.01))))


@operator("PRelu")
def prelu(at: Lowering, node: Node) -> None:
    """LEAKY_RELU where all slopes are one number, otherwise PRELU with the slopes along the channels."""
    slope = at.constant(node.input(1))
    if slope is None:
        raise Refused("the slopes must be stored in the model, not computed at run time")
    if np.all(slope == slope.reshape(-1)[0]):
        function(at, node, "LEAKY_RELU", LeakyRelu(float(slope.reshape(-1)[0])))
        return
    axes = at.axes(node.input(0))
    tensor = at.stored(node.input(0), axes)
    shape = at.tensors[tensor].shape
    missing = len(axes) - slope.ndim
    whole = slope.reshape((1,) * missing + slope.shape)
    slopes = np.transpose(whole, axes)
    slopes = slopes[0] if slopes.shape[0] == 1 else slopes
    at.give(node.output, at.emit("PRELU", (tensor, at.store(slopes, node.input(1))), shape, stem=node.output), axes)


@operator("HardSigmoid")
def hard_sigmoid(at: Lowering, node: Node) -> None:
    """RELU6 of a scaled and shifted input, scaled by a sixth: max(0, min(1, alpha * x + beta))."""
    alpha, beta = float(node.get("alpha", 0.2)), float(node.get("beta", 0.5))
    axes = at.axes(node.input(0))
    tensor = at.stored(node.input(0), axes)
    shape = at.tensors[tensor].shape
    if not np.isclose(6 * alpha, 1.0, rtol=1e-6):
        tensor = at.emit("MUL", (tensor, at.value("slope", 6 * alpha)), shape, Mul(), node.output)
    moved = at.emit("ADD", (tensor, at.value("offset", 6 * beta)), shape, Add("RELU6"), node.output)
    at.give(node.output, at.emit("MUL", (moved, at.value("sixth", 1 / 6)), shape, Mul(), node.output), axes)


@operator("Gelu")
def gelu(at: Lowering, node: Node) -> None:
    """GELU, exact or by tanh as the model has it."""
    function(at, node, "GELU", Gelu(node.get("approximate", "none") == "tanh"))


@operator("Softmax", "LogSoftmax")
def softmax(at: Lowering, node: Node) -> None:
    """SOFTMAX with its axis stored last; its logarithm from the largest value down, which NPUs and C can do."""
    name = node.input(0)
    rank = at.rank(name)
    axis = int(node.get("axis", -1)) % rank
    axes = (*(each for each in at.axes(name) if each != axis), axis)
    tensor = at.stored(name, axes)
    shape = at.tensors[tensor].shape
    if node.op == "Softmax":
        at.give(node.output, at.emit("SOFTMAX", (tensor,), shape, Softmax(), node.output), axes)
        return
    top = reduced(at, "REDUCE_MAX", tensor, [rank - 1], f"{node.output}/top")
    below = at.emit("SUB", (tensor, top), shape, Sub(), f"{node.output}/below")
    powers = at.emit("EXP", (below,), shape, stem=f"{node.output}/powers")
    total = summed(at, powers, [rank - 1], f"{node.output}/sum")
    logarithm = at.emit("LOG", (total,), at.tensors[total].shape, stem=f"{node.output}/log")
    at.give(node.output, at.emit("SUB", (below, logarithm), shape, Sub(), node.output), axes)
