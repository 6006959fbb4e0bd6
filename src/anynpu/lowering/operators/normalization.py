"""Normalisations, composed of means and products."""

from __future__ import annotations

import math

import numpy as np

from anynpu.lowering.lower import CHANNELS_LAST, Axes, Lowering, plain
from anynpu.lowering.operators.reduction import reduced, summed
from anynpu.lowering.options import Add, DepthwiseConv2D, Div, Mul, Sub
from anynpu.lowering.table import Node, Refused, operator, required
from anynpu.tensors import Array


def scaled_channels(at: Lowering, name: str, factor: Array, offset: Array, output: str) -> None:
    """Multiplies and moves each channel: a depthwise convolution of an image, which rounds once; else MUL and ADD."""
    rank = at.rank(name)
    channels = np.asarray(factor, np.float32), np.asarray(offset, np.float32)
    if rank == 4:
        tensor = at.stored(name, CHANNELS_LAST[4])
        weights = at.store(channels[0].reshape(1, 1, 1, -1), f"{output}/factors")
        inputs = (tensor, weights, at.store(channels[1], f"{output}/offsets"))
        shape = at.tensors[tensor].shape
        at.give(output, at.emit("DEPTHWISE_CONV_2D", inputs, shape, DepthwiseConv2D(), output), CHANNELS_LAST[4])
        return
    axes = at.axes(name)
    tensor = at.stored(name, axes)
    shape = at.tensors[tensor].shape
    along = [-1 if axis == 1 else 1 for axis in axes]
    scaled = at.emit("MUL", (tensor, at.store(channels[0].reshape(along), f"{output}/factors")), shape, Mul(), output)
    moved = at.store(channels[1].reshape(along), f"{output}/offsets")
    at.give(output, at.emit("ADD", (scaled, moved), shape, Add(), output), axes)


def normalised(at: Lowering, tensor: str, places: list[int], epsilon: float, stem: str, centred: bool = True) -> str:
    """Returns the tensor less its mean and divided by its deviation over stored axes."""
    shape = at.tensors[tensor].shape
    if centred:
        mean = reduced(at, "MEAN", tensor, places, f"{stem}/mean")
        tensor = at.emit("SUB", (tensor, mean), shape, Sub(), f"{stem}/centred")
    square = at.emit("MUL", (tensor, tensor), shape, Mul(), f"{stem}/square")
    variance = reduced(at, "MEAN", square, places, f"{stem}/variance")
    small = at.tensors[variance].shape
    above = at.emit("ADD", (variance, at.value("epsilon", epsilon)), small, Add(), f"{stem}/variance")
    inverse = at.emit("RSQRT", (above,), small, stem=f"{stem}/inverse")
    return at.emit("MUL", (tensor, inverse), shape, Mul(), stem)


def _affine(at: Lowering, tensor: str, scale: Array | None, bias: Array | None, stem: str) -> str:
    shape = at.tensors[tensor].shape
    if scale is not None:
        tensor = at.emit("MUL", (tensor, at.store(scale, f"{stem}/scale")), shape, Mul(), stem)
    if bias is not None:
        tensor = at.emit("ADD", (tensor, at.store(bias, f"{stem}/bias")), shape, Add(), stem)
    return tensor


def _ordered(at: Lowering, name: str, axes: Axes, what: str) -> Array | None:
    """Returns a constant that broadcasts against a tensor stored as `axes`."""
    if not name:
        return None
    array = required(at.constant(name), what)
    whole = array.reshape((1,) * (len(axes) - array.ndim) + array.shape)
    return np.asarray(np.transpose(whole, axes))


@operator("LayerNormalization", "RMSNormalization", "SimplifiedLayerNormalization")
def layer_norm(at: Lowering, node: Node) -> None:
    """MEAN, SUB, MUL, MEAN, RSQRT and MUL over the axes from `axis` on, then scale and bias; an image as rows."""
    if any(at.reads[name] for name in node.outputs[1:] if name):
        raise Refused("mean or deviation are read as results")
    name = node.input(0)
    axes, rank = at.axes(name), at.rank(name)
    first = int(node.get("axis", -1)) % rank
    tensor = at.stored(name, axes)
    places = [place for place, axis in enumerate(axes) if axis >= first]
    scale, bias = _ordered(at, node.input(1), axes, "the scale"), _ordered(at, node.input(2), axes, "the bias")
    shape = at.tensors[tensor].shape
    if rank > 3 and places == [rank - 1]:
        # Vela reduces over the depth of rows, not over that of an image.
        tensor, places = at.reshape(tensor, (shape[0], math.prod(shape[1:-1]), shape[-1])), [2]
        scale, bias = (None if array is None else array.reshape(-1) for array in (scale, bias))
    centred = node.op == "LayerNormalization"
    result = normalised(at, tensor, places, float(node.get("epsilon", 1e-5)), node.output, centred)
    at.give(node.output, at.reshape(_affine(at, result, scale, bias, node.output), shape), axes)


@operator("InstanceNormalization")
def instance_norm(at: Lowering, node: Node) -> None:
    """As a layer norm over the spatial axes of each channel."""
    name = node.input(0)
    axes = at.axes(name)
    tensor = at.stored(name, axes)
    places = [place for place, axis in enumerate(axes) if axis >= 2]
    result = normalised(at, tensor, places, float(node.get("epsilon", 1e-5)), node.output)
    along = [-1 if axis == 1 else 1 for axis in axes]
    scale, bias = (required(at.constant(node.input(place)), "scale or bias").reshape(along) for place in (1, 2))
    at.give(node.output, _affine(at, result, scale, bias, node.output), axes)


@operator("GroupNormalization")
def group_norm(at: Lowering, node: Node) -> None:
    """As a layer norm over the channels of each group and the spatial axes."""
    name = node.input(0)
    groups, shape = int(node.get("num_groups", 1)), at.shape(name)
    channels = shape[1]
    tensor = at.stored(name, plain(len(shape)))
    grouped = at.reshape(tensor, (shape[0], groups, int(np.prod(shape[1:])) // groups))
    result = normalised(at, grouped, [2], float(node.get("epsilon", 1e-5)), node.output)
    result = at.reshape(result, shape)
    scale, bias = (required(at.constant(node.input(place)), "scale or bias") for place in (1, 2))
    if scale.size == groups != channels:  # before opset 21 there is one of each for a group
        scale, bias = np.repeat(scale, channels // groups), np.repeat(bias, channels // groups)
    along = (1, -1, *([1] * (len(shape) - 2)))
    at.give(node.output, _affine(at, result, scale.reshape(along), bias.reshape(along), node.output))


@operator("LpNormalization")
def lp_norm(at: Lowering, node: Node) -> None:
    """x / sqrt(sum of squares) along one axis, or x / sum of sizes."""
    axes = at.axes(node.input(0))
    tensor = at.stored(node.input(0), axes)
    shape, place = at.tensors[tensor].shape, axes.index(int(node.get("axis", -1)) % len(axes))
    if int(node.get("p", 2)) == 1:
        size = at.emit("ABS", (tensor,), shape, stem=f"{node.output}/size")
        total = summed(at, size, [place], f"{node.output}/sum")
        bound = (total, at.value("least", 1e-12))
        total = at.emit("MAXIMUM", bound, at.tensors[total].shape, stem=f"{node.output}/sum")
        at.give(node.output, at.emit("DIV", (tensor, total), shape, Div(), node.output), axes)
        return
    square = at.emit("MUL", (tensor, tensor), shape, Mul(), f"{node.output}/square")
    inverse = summed(at, square, [place], f"{node.output}/sum")
    small = at.tensors[inverse].shape
    # Zeros have the norm of zeros: their inverse must be finite.
    inverse = at.emit("MAXIMUM", (inverse, at.value("least", 1e-24)), small, stem=f"{node.output}/sum")
    inverse = at.emit("RSQRT", (inverse,), small, stem=f"{node.output}/inverse")
    at.give(node.output, at.emit("MUL", (tensor, inverse), shape, Mul(), node.output), axes)
