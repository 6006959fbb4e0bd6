"""Models that compute in float16, bfloat16 or double, in float32: the type that every float reference here has."""

from __future__ import annotations

from collections.abc import Set

import numpy as np
import onnx
from onnx import GraphProto, ModelProto, TensorProto, numpy_helper

from anynpu.graph.fold import copied, inner_graphs

OTHERS = {TensorProto.FLOAT16: "float16", TensorProto.BFLOAT16: "bfloat16", TensorProto.DOUBLE: "double"}
TYPES = ("to", "dtype", "output_dtype")
"""Attributes that name the type of a result."""
LIMIT = float(np.finfo(np.float32).max)


def in_float32(model: ModelProto) -> tuple[ModelProto, tuple[str, ...]]:
    """Returns a model that feeds, stores and computes float32 in place of other real types, and a note of these.

    Double numbers inside of a model that neither reads nor gives any stay: they are there for their precision.
    """
    borders = {value.type.tensor_type.elem_type for value in (*model.graph.input, *model.graph.output)}
    stored = {tensor.data_type for tensor in model.graph.initializer} - {TensorProto.DOUBLE}
    kinds = frozenset((borders | stored) & {*OTHERS})
    if not kinds:
        return model, ()
    result = copied(model)
    _widen(result.graph, kinds)
    names = " and ".join(sorted(OTHERS[kind] for kind in kinds))
    said = f"the file computes in {names}: the float model that counts is the same in float32"
    return result, (said,)


def _widen(graph: GraphProto, kinds: Set[int]) -> None:
    for value in (*graph.input, *graph.output, *graph.value_info):
        if value.type.tensor_type.elem_type in kinds:
            value.type.tensor_type.elem_type = TensorProto.FLOAT
    for tensor in graph.initializer:
        _store(tensor, kinds)
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.name in TYPES and attribute.type == onnx.AttributeProto.INT and attribute.i in kinds:
                attribute.i = TensorProto.FLOAT
            if attribute.type == onnx.AttributeProto.TENSOR:
                _store(attribute.t, kinds)
        for inner in inner_graphs(node):
            _widen(inner, kinds)


def _store(tensor: TensorProto, kinds: Set[int]) -> None:
    if tensor.data_type in kinds:
        values = numpy_helper.to_array(tensor).astype(np.float64)
        finite = np.where(np.isinf(values), values, np.clip(values, -LIMIT, LIMIT))
        tensor.CopyFrom(numpy_helper.from_array(finite.astype(np.float32), tensor.name))
