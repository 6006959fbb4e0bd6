"""Training and XINT8: where a file of Quark's holds the integers of a layer, and how trained ones are put there."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
from onnx import ModelProto, NodeProto, numpy_helper

from anynpu.errors import IntegrityError
from anynpu.tensors import Array
from anynpu.training.scheme import Rounding, Scheme, WeightRounding

BEHIND = "_QuantizeLinear_Input"
"""A result of the model keeps its name behind its pair; before it, it has this suffix."""


def constants(model: ModelProto) -> dict[str, NodeProto]:
    """Returns the node that reads each layer's stored weights and biases, by the name of the layer's result."""
    stored = {tensor.name for tensor in model.graph.initializer}
    readers = {
        node.output[0]: node
        for node in model.graph.node
        if node.op_type == "DequantizeLinear" and node.input[0] in stored
    }
    arrays = {}
    for node in model.graph.node:
        for name, what in zip(node.input[1:3], ("weights", "biases"), strict=False):
            if name in readers:
                arrays[f"{node.output[0].removesuffix(BEHIND)}/{what}"] = readers[name]
    return arrays


def activations(model: ModelProto) -> Iterator[tuple[str, NodeProto]]:
    """Yields every activation that is stored as integers, with the node that rounds it."""
    for node in model.graph.node:
        if node.op_type == "QuantizeLinear":
            yield node.input[0].removesuffix(BEHIND), node


def forms(model: ModelProto) -> tuple[dict[str, Rounding], dict[str, tuple[WeightRounding, Array]]]:
    """Returns how an XINT8 file rounds: all scales are powers of two, which training leaves as they are."""
    stored = {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
    rounded = {
        name: Rounding(0, 255, float(stored[node.input[1]]), int(stored[node.input[2]]), free=False)
        for name, node in activations(model)
    }
    weights = {}
    for name, node in constants(model).items():
        scale = (float(stored[node.input[1]]),)
        weights[name] = WeightRounding(-128, 127, scale, None, name, fixed=True), stored[node.input[0]]
    return rounded, weights


def hold(model: ModelProto, scheme: Scheme, integers: Mapping[str, Array]) -> None:
    """Puts what training ended with into a file of Quark's, which finds scales of its own for the trained weights."""
    stored = {tensor.name: tensor for tensor in model.graph.initializer}

    def put(name: str, values: Array) -> None:
        before = numpy_helper.to_array(stored[name])
        if before.size != values.size:
            raise IntegrityError(f"training: {name} has {before.size} elements in Quark's file, {values.size} trained")
        stored[name].CopyFrom(numpy_helper.from_array(values.astype(before.dtype).reshape(before.shape), name))

    places = constants(model)
    for name, rounding in scheme.weights.items():
        if node := places.get(rounding.tensor):
            put(node.input[0], integers[name])
            put(node.input[1], np.array(rounding.scale, np.float32))
    roundings = {**scheme.activations, **scheme.others}
    readers = {node.input[0]: node for node in model.graph.node if node.op_type == "DequantizeLinear"}
    for name, node in activations(model):
        if form := roundings.get(name):
            for each in (node, readers[node.output[0]]):
                put(each.input[1], np.array(form.scale, np.float32))
