"""Models that compute in float16, bfloat16 or double, in float32: the type that every float reference here has."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set

import numpy as np
import onnx
from onnx import GraphProto, ModelProto, TensorProto, numpy_helper

from anynpu.errors import IntegrityError
from anynpu.graph.fold import copied, inner_graphs
from anynpu.graph.run import Session
from anynpu.graph.shapes import dtype_of, inputs_of
from anynpu.measure.fidelity import compare_outputs
from anynpu.tensors import Array

OTHERS = {TensorProto.FLOAT16: "float16", TensorProto.BFLOAT16: "bfloat16", TensorProto.DOUBLE: "double"}
TYPES = ("to", "dtype", "output_dtype")
"""Attributes that name the type of a result."""
LIMIT = float(np.finfo(np.float32).max)
LEAST_DB: dict[int, float] = {TensorProto.FLOAT16: 20.0, TensorProto.BFLOAT16: 10.0, TensorProto.DOUBLE: 60.0}
"""How close a model is to itself in float32 where nothing but rounding is between them, at least."""
LEAST_DYNAMIC_DB = 10.0
"""The same where the file finds its scales at run time, and rounds each activation to 8 bits."""
MOST_COMPARED = 8


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


def rounding(original: ModelProto, model: ModelProto, feeds: Sequence[Mapping[str, Array]]) -> tuple[str, ...]:
    """Returns in a note how far a file in its own types is from the same in float32; more than rounding raises."""
    values = (*original.graph.input, *original.graph.output, *original.graph.initializer)
    held = {value.data_type if isinstance(value, TensorProto) else value.type.tensor_type.elem_type for value in values}
    kinds = {value.name: dtype_of(value) for value in inputs_of(original)}
    outputs = [value.name for value in model.graph.output]
    pairs = []
    try:
        own, same = Session(original), Session(model)
        for feed in feeds[:MOST_COMPARED]:
            with np.errstate(over="ignore"):  # what overflows is infinite, and says nothing
                fed = {name: feed[name].astype(kind) for name, kind in kinds.items()}
            pair = own.run(fed), same.run(feed)
            if all(np.isfinite(np.asarray(each, np.float64)).all() for answers in pair for each in answers):
                pairs.append(pair)
    except IntegrityError:
        return ("ONNX Runtime does not run the file in its own types: what is compared is the same in float32",)
    if not pairs:
        return ("in its own types the file gives no finite numbers on these samples: it is not compared with float32",)
    figures = sqnr_db(outputs, pairs)
    worst = min(figures, key=lambda name: figures[name])
    if figures[worst] < min((LEAST_DB[kind] for kind in held & {*OTHERS}), default=LEAST_DYNAMIC_DB):
        raise IntegrityError(
            f"in float32 the model is {figures[worst]:.1f} dB from the file at output '{worst}': more than rounding",
            "export the model in float32",
        )
    return (f"on {len(pairs)} samples the file in its own types is {figures[worst]:.1f} dB from the same in float32",)


def sqnr_db(outputs: Sequence[str], pairs: Sequence[Sequence[Sequence[Array]]]) -> dict[str, float]:
    """Returns how far two models' answers to the same samples are apart, for each output."""
    expected, got = (
        {
            name: np.concatenate([np.asarray(pair[side][at], np.float64).reshape(1, -1) for pair in pairs])
            for at, name in enumerate(outputs)
        }
        for side in (0, 1)
    )
    return {name: each.sqnr_db for name, each in compare_outputs(expected, got).items()}


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
