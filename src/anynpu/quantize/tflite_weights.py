"""Weights and biases of float TFLite models, changed so that their integers lose less."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from anynpu.quantize.bias import ChannelMeans, lost_mean, rounding_error
from anynpu.quantize.calibration import Dataset
from anynpu.quantize.equalize import Floats, channel_factors
from anynpu.quantize.fitting import FITTING_SAMPLES, Moments, Window, fitted
from anynpu.quantize.weights import symmetric_scales
from anynpu.runtime.tflite_file import operator_names, text
from anynpu.tensors import Array

# The axis along which weights have one scale per channel, which is that of the output channels.
_WEIGHT_AXES = {"CONV_2D": 0, "FULLY_CONNECTED": 0, "DEPTHWISE_CONV_2D": 3}
# Rectifiers that a positive factor passes through: none, ReLU, and ReLU6 below its ceiling.
_RECTIFIERS = (0, 1, 3)


@dataclass(frozen=True)
class Pair:
    """Two weighted operators with one tensor between them, or one and its padding."""

    tensor: str
    first: Any
    first_name: str
    second: Any
    second_name: str


def _weighted(model: Any) -> list[tuple[str, Any]]:
    """Returns the operators with stored weights and a stored bias of their own, each with its name."""
    graph = model.subgraphs[0]
    uses = Counter(graph.tensors[int(i)].buffer for op in graph.operators for i in op.inputs if i >= 0)
    found = []
    for name, op in zip(operator_names(model), graph.operators, strict=True):
        if name not in _WEIGHT_AXES or len(op.inputs) < 3 or op.inputs[2] < 0:
            continue
        weights, bias = (graph.tensors[int(op.inputs[i])].buffer for i in (1, 2))
        stored = all(model.buffers[b].data is not None and len(model.buffers[b].data) for b in (weights, bias))
        if stored and uses[bias] == 1:
            found.append((name, op))
    return found


def weighted_inputs(model: Any) -> dict[str, int]:
    """Returns the tensors that meet stored weights, each with the axis of its channels."""
    tensors = model.subgraphs[0].tensors
    return {text(tensors[int(op.inputs[0])].name): -1 for _, op in _weighted(model)}


def correct_biases(
    model: Any, means: ChannelMeans, per_channel: bool, bits: int = 8, in_float: Collection[str] = ()
) -> None:
    """Adds to every bias what rounding will take from the mean of its output; `in_float` are results of operators
    whose weights are not rounded."""
    tensors = model.subgraphs[0].tensors
    for name, op in _weighted(model):
        if text(tensors[int(op.outputs[0])].name) in in_float:
            continue
        taken, bias = tensors[int(op.inputs[0])], tensors[int(op.inputs[2])]
        weights = _values(model, int(op.inputs[1])).astype(np.float64)
        rounded = weights - rounding_error(weights, _WEIGHT_AXES[name] if per_channel else None, bits)
        shift = lost_mean(_arranged(weights, name), _arranged(rounded, name), means, text(taken.name), _depthwise(name))
        values = np.frombuffer(model.buffers[bias.buffer].data, np.float32) + shift.astype(np.float32)
        model.buffers[bias.buffer].data = np.frombuffer(values.astype(np.float32).tobytes(), np.uint8)


def fit_weights(
    model: Any, run: Callable[[dict[str, Array]], Mapping[str, Array]], data: Dataset, per_channel: bool, bits: int = 8
) -> int:
    """Replaces weights by what is stored of them, rounded against the inputs that they meet; returns how many."""
    tensors = model.subgraphs[0].tensors
    uses = Counter(tensors[int(op.inputs[1])].buffer for _, op in _weighted(model))
    layers = [(name, op) for name, op in _weighted(model) if uses[tensors[int(op.inputs[1])].buffer] == 1]
    moments = [Moments() for _ in layers]
    for index in range(min(data.count, FITTING_SAMPLES) if layers else 0):
        computed = run(data.sample(index))
        for (name, op), each in zip(layers, moments, strict=True):
            taken = computed[text(tensors[int(op.inputs[0])].name)]
            if name == "FULLY_CONNECTED":
                each.rows(taken.reshape(-1, tensors[int(op.inputs[1])].shape[-1]))
            else:
                for image in np.moveaxis(taken, -1, 1):
                    each.image(image, _window(name, op, image.shape, tensors[int(op.inputs[1])].shape))
    for (name, op), each in zip(layers, moments, strict=True):
        values = _values(model, int(op.inputs[1]))
        rows = np.moveaxis(values, 3, 0) if _depthwise(name) else np.moveaxis(values, -1, 1)
        scales = symmetric_scales(rows, 0 if per_channel else None, bits)
        found = fitted(rows.reshape(len(rows), -1), each, scales, bits).reshape(rows.shape)
        back = np.moveaxis(found, 0, 3) if _depthwise(name) else np.moveaxis(found, 1, -1)
        buffer = tensors[int(op.inputs[1])].buffer
        plain = np.ascontiguousarray(back, np.float32)
        model.buffers[buffer].data = np.frombuffer(plain.tobytes(), np.uint8)
    return len(layers)


def _window(name: str, op: Any, image: tuple[int, ...], weights: Any) -> Window:
    """Returns where a convolution reads an input (channels, height, width); SAME pads more behind than before."""
    options, kernel = op.builtinOptions, (int(weights[1]), int(weights[2]))
    strides, dilations = (options.strideH, options.strideW), (options.dilationHFactor, options.dilationWFactor)
    pads = [0, 0, 0, 0]
    for axis in (0, 1) if options.padding == 0 else ():
        size, reach = image[1 + axis], dilations[axis] * (kernel[axis] - 1) + 1
        missing = max((-(-size // strides[axis]) - 1) * strides[axis] + reach - size, 0)
        pads[axis], pads[axis + 2] = missing // 2, missing - missing // 2
    groups = image[0] if _depthwise(name) else image[0] // int(weights[3])
    return Window(kernel, strides, dilations, (pads[0], pads[1], pads[2], pads[3]), groups)


def _depthwise(name: str) -> bool:
    return name == "DEPTHWISE_CONV_2D"


def _arranged(weights: Floats, name: str) -> Floats:
    """Returns the weights as (outputs, positions, inputs), or (outputs, positions) of a depthwise operator."""
    if _depthwise(name):
        return weights.reshape(-1, weights.shape[-1]).T
    return weights.reshape(weights.shape[0], -1, weights.shape[-1])


def equalizable_pairs(model: Any) -> list[Pair]:
    """Returns the pairs of operators between which channels may be scaled."""
    graph = model.subgraphs[0]
    weighted = {id(op): name for name, op in _weighted(model)}
    names = {id(op): name for name, op in zip(operator_names(model), graph.operators, strict=True)}
    users: dict[int, list[Any]] = {}
    for op in graph.operators:
        for index in op.inputs:
            users.setdefault(int(index), []).append(op)
    buffers = Counter(graph.tensors[int(i)].buffer for op in graph.operators for i in op.inputs if i >= 0)
    outputs = {int(index) for index in graph.outputs}
    found = []
    for op in graph.operators:
        second = _only_user(op, users, outputs)
        if second is not None and names[id(second)] == "PAD":
            second = _only_user(second, users, outputs)
        if id(op) not in weighted or second is None or id(second) not in weighted:
            continue
        alone = all(buffers[graph.tensors[int(one.inputs[1])].buffer] == 1 for one in (op, second))
        if alone and op.builtinOptions.fusedActivationFunction in _RECTIFIERS and _channels_meet(graph, op, second):
            tensor = text(graph.tensors[int(op.outputs[0])].name)
            found.append(Pair(tensor, op, names[id(op)], second, names[id(second)]))
    return found


def _only_user(op: Any, users: dict[int, list[Any]], outputs: set[int]) -> Any | None:
    index = int(op.outputs[0])
    found = users.get(index, [])
    if len(op.outputs) != 1 or len(found) != 1 or index in outputs or int(found[0].inputs[0]) != index:
        return None
    return found[0]


def _channels_meet(graph: Any, first: Any, second: Any) -> bool:
    """Tells whether each output channel of `first` is one input channel of `second`, without groups or multiplier."""
    channels = int(graph.tensors[int(first.outputs[0])].shape[-1])
    return int(graph.tensors[int(second.inputs[1])].shape[-1]) == channels


def equalize_pair(model: Any, pair: Pair, peak: Floats) -> Floats:
    """Lifts the quiet channels between two operators, lowers the weights that meet them, and returns the factors.

    All the way before a depthwise operator, whose channels have a weight scale each; half the way before another.
    """
    factors = channel_factors(peak, 1.0 if _depthwise(pair.second_name) else 0.5)
    along = [1] * 4
    along[_WEIGHT_AXES[pair.first_name]] = -1
    rank = len(model.subgraphs[0].tensors[int(pair.first.inputs[1])].shape)
    shape = along if rank == 4 else [-1] + [1] * (rank - 1)
    _scale(model, int(pair.first.inputs[1]), factors.reshape(shape))
    _scale(model, int(pair.first.inputs[2]), factors)
    _scale(model, int(pair.second.inputs[1]), 1.0 / factors)
    return factors


def _values(model: Any, index: int) -> Array:
    tensor = model.subgraphs[0].tensors[index]
    return np.frombuffer(model.buffers[tensor.buffer].data, np.float32).reshape(tensor.shape)


def _scale(model: Any, index: int, factors: Floats) -> None:
    values = np.asarray(_values(model, index) * factors, np.float32)
    buffer = model.subgraphs[0].tensors[index].buffer
    model.buffers[buffer].data = np.frombuffer(values.tobytes(), np.uint8)
