"""Reads a .tflite file into a graph, as far as the writer knows its operators."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Sequence
from typing import Any, get_type_hints

import numpy as np

from anynpu.errors import Finding, IntegrityError, Unsupported
from anynpu.lowering import options as tables
from anynpu.lowering.graph import Graph, Operator, Tensor, pruned
from anynpu.lowering.options import EMPTY_TABLES, Options
from anynpu.lowering.spellings import respelled, wide_windows
from anynpu.lowering.write import _ENUMS, PACKED, camel, schema
from anynpu.runtime.tflite_file import operator_names, read_quantization, shared_model, text
from anynpu.tensors import Array

HARMLESS = frozenset(("potScaleInt16", "asymmetricQuantizeInputs", "quantizedBiasType"))
"""Settings that change no result of a float kernel, or repeat what the tensors say."""


def from_bytes(content: bytes, name: str = "model") -> Graph:
    """Returns the main graph of a .tflite file; an operator with settings unknown here raises Unsupported."""
    model = shared_model(content, name)
    subgraph = model.subgraphs[0]
    tensors = [_tensor(tensor, model.buffers) for tensor in subgraph.tensors]
    names = [tensor.name for tensor in tensors]
    if len({*names}) != len(names):
        raise IntegrityError(f"{name}: two tensors have one name")
    by_name, operators, findings = {tensor.name: tensor for tensor in tensors}, list[Operator](), []
    for kind, operator in zip(operator_names(model), subgraph.operators, strict=True):
        inputs = tuple(names[i] if i >= 0 else "" for i in operator.inputs)
        outputs = tuple(names[i] for i in operator.outputs)
        if (spelled := respelled(kind, inputs, outputs, operator.builtinOptions, by_name)) is not None:
            operators += spelled
            continue
        try:
            operators.append(Operator(kind, inputs, outputs, _settings(kind, operator.builtinOptions)))
        except (KeyError, AttributeError):
            findings.append(Finding("tflite-operator", f"settings of {kind} are not known here", outputs[0]))
    if findings:
        raise Unsupported(f"{name} cannot be read: {findings[0]}", findings)
    inputs, outputs = (tuple(names[i] for i in part) for part in (subgraph.inputs, subgraph.outputs))
    if "BATCH_TO_SPACE_ND" in {operator.kind for operator in operators}:
        return pruned(wide_windows(operators, by_name, outputs), by_name, inputs, outputs)
    return Graph(tuple(operators), by_name, inputs, outputs)


@functools.cache
def _enum(name: str) -> dict[int, str]:
    return {value: key for key, value in vars(getattr(schema(), name)).items() if isinstance(value, int)}


def _tensor(tensor: Any, buffers: Sequence[Any]) -> Tensor:
    dtype = _enum("TensorType")[tensor.type].lower()
    shape = tuple(int(size) for size in (tensor.shape if tensor.shape is not None else ()))
    content = buffers[tensor.buffer].data
    data: Array | None = None
    if content is not None and len(content) and (packed := PACKED.get(dtype)) is not None:
        data = packed[1](np.asarray(content, np.uint8), math.prod(shape)).reshape(shape)
    elif content is not None and len(content):
        data = np.frombuffer(np.asarray(content, np.uint8).tobytes(), np.dtype(dtype)).reshape(shape)
    elif math.prod(shape) == 0:  # the shape of a tensor without axes
        data = np.zeros(shape, np.dtype(dtype))
    return Tensor(text(tensor.name), shape, dtype, data, read_quantization(tensor.quantization))


def _settings(kind: str, settings: Any) -> Options | None:
    if settings is None:
        return None
    table = type(settings).__name__.removesuffix("OptionsT")
    if table in EMPTY_TABLES.values():
        return None
    options: type[Options] | None = getattr(tables, table, None)
    if options is None:
        if all(not getattr(settings, field) for field in vars(settings)):
            return None
        raise KeyError(table)
    names = {camel(item.name) for item in dataclasses.fields(options)} | HARMLESS
    if any(getattr(settings, field) for field in {*vars(settings)} - names):
        raise KeyError(table)
    hints = get_type_hints(options)
    values: dict[str, Any] = {}
    for item in dataclasses.fields(options):
        value = getattr(settings, camel(item.name))
        if item.name in _ENUMS:
            value = _enum(_ENUMS[item.name])[int(value)]
        elif item.name in ("output_type", "in_data_type", "out_data_type"):
            value = _enum("TensorType")[int(value)].lower()
        elif hints[item.name] == tuple[int, ...]:
            value = () if value is None else tuple(int(each) for each in value)
        else:
            value = hints[item.name](value)
        values[item.name] = value
    return options(**values)
