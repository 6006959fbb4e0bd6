"""Folds batch normalisations into the layer before them: its weights and bias take their factors and offsets.

onnxsim does it for convolutions; behind a dense layer, and where onnxsim is not installed, this pass does.
"""

from __future__ import annotations

from collections import Counter

import numpy as np
from onnx import ModelProto, NodeProto, TensorProto, numpy_helper

from anynpu.graph.attributes import attribute
from anynpu.graph.fold import copied, names_read, static_shapes
from anynpu.graph.passes import Pass
from anynpu.tensors import Array

_EPSILON = 1e-5


def _fold(model: ModelProto) -> tuple[ModelProto, int]:
    result = copied(model)
    graph = result.graph
    stored = {t.name: t for t in graph.initializer if t.data_type == TensorProto.FLOAT}
    makers = {name: node for node in graph.node for name in node.output}
    uses = Counter(name for node in graph.node for name in names_read(node)) + Counter(v.name for v in graph.output)
    shapes = static_shapes(graph)
    folded: list[NodeProto] = []
    for norm in graph.node:
        layer = makers.get(norm.input[0]) if norm.op_type == "BatchNormalization" and not norm.domain else None
        if layer is None or uses[norm.input[0]] != 1 or len(norm.output) != 1 or attribute(norm, "training_mode", 0):
            continue
        axis = _output_axis(layer, len(shapes.get(layer.input[0], ())))
        if axis is None or not {*layer.input[1:], *norm.input[1:]} <= {*stored, ""}:
            continue
        scale, offset, mean, variance = (numpy_helper.to_array(stored[name]) for name in norm.input[1:5])
        factors = scale.astype(np.float64) / np.sqrt(variance.astype(np.float64) + attribute(norm, "epsilon", _EPSILON))
        weights = numpy_helper.to_array(stored[layer.input[1]])
        bias = numpy_helper.to_array(stored[layer.input[2]]) if len(layer.input) > 2 and layer.input[2] else np.zeros(1)
        if weights.ndim < 2 or weights.shape[axis] != len(factors) or bias.size not in (1, len(factors)):
            continue
        shape = [-1 if at == axis else 1 for at in range(weights.ndim)]
        moved = (bias.reshape(-1) - mean) * factors + offset
        name = norm.output[0]
        graph.initializer.extend(
            [_stored(weights * factors.reshape(shape), f"{name}/weights"), _stored(moved, f"{name}/bias")]
        )
        layer.input[1:] = [f"{name}/weights", f"{name}/bias"]
        layer.output[0] = name
        if layer.op_type == "MatMul":  # which has no bias
            layer.op_type = "Gemm"
        folded.append(norm)
    for norm in folded:
        graph.node.remove(norm)
    read = {name for node in graph.node for name in names_read(node)} | {value.name for value in graph.output}
    for tensor in [t for t in graph.initializer if t.name not in read and t.name in stored]:
        graph.initializer.remove(tensor)
    return result, len(folded)


def _output_axis(layer: NodeProto, rank: int) -> int | None:
    """Returns the axis of a layer's weights that its output channels lie on, or None where nothing can be folded;
    `rank` is that of its input."""
    if layer.op_type == "Conv" and not layer.domain:
        return 0
    if layer.op_type == "ConvTranspose" and not layer.domain and attribute(layer, "group", 1) == 1:
        return 1
    if layer.op_type == "MatMul" and rank == 2:
        return 1
    plain = attribute(layer, "alpha", 1.0) == 1.0 and attribute(layer, "beta", 1.0) == 1.0
    return (0 if attribute(layer, "transB", 0) else 1) if layer.op_type == "Gemm" and plain else None


def _stored(values: Array, name: str) -> TensorProto:
    return numpy_helper.from_array(np.ascontiguousarray(values, np.float32), name)


def _has_one(model: ModelProto) -> str:
    return "" if any(node.op_type == "BatchNormalization" for node in model.graph.node) else "it has none"


BATCH_NORM = Pass("batch-norm", "a batch normalisation is folded into the layer before it", _fold, requires=_has_one)
