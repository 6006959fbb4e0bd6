"""Writes a graph as a .tflite file with the flatbuffers package and the schema that LiteRT ships."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from anynpu.errors import ToolMissing
from anynpu.lowering.graph import Graph, Operator, Tensor
from anynpu.lowering.options import EMPTY_TABLES
from anynpu.runtime.tflite_file import pack_model
from anynpu.tensors import Array

# The versions from which kernels take 8 and 16 bits; an operator that is not named has one version for all.
BYTE_VERSIONS = {
    "CONV_2D": 3, "DEPTHWISE_CONV_2D": 3, "FULLY_CONNECTED": 4, "TRANSPOSE_CONV": 3, "ADD": 2, "SUB": 2, "MUL": 2,
    "AVERAGE_POOL_2D": 2, "MAX_POOL_2D": 2, "CONCATENATION": 2, "SOFTMAX": 2, "LOG_SOFTMAX": 2, "LOGISTIC": 2,
    "TANH": 2, "MEAN": 2, "SUM": 2, "REDUCE_MAX": 2, "REDUCE_MIN": 2, "MAXIMUM": 2, "MINIMUM": 2, "PADV2": 2, "PAD": 2,
    "TRANSPOSE": 2, "LEAKY_RELU": 2, "GATHER": 2, "SPLIT": 2, "SLICE": 2, "STRIDED_SLICE": 2, "DEQUANTIZE": 2,
    "BATCH_MATMUL": 2, "RELU": 2, "RELU6": 2, "SPACE_TO_DEPTH": 2, "SQUARED_DIFFERENCE": 2, "RSQRT": 2, "EXP": 2,
    "LOG": 2, "GELU": 2, "TILE": 2, "ARG_MAX": 2, "ARG_MIN": 2, "SQRT": 2, "DIV": 2, "ABS": 2, "MIRROR_PAD": 2,
}  # fmt: skip
WIDE_VERSIONS = {
    "CONV_2D": 5, "DEPTHWISE_CONV_2D": 5, "FULLY_CONNECTED": 7, "TRANSPOSE_CONV": 4, "ADD": 4, "SUB": 5, "MUL": 4,
    "AVERAGE_POOL_2D": 3, "MAX_POOL_2D": 3, "CONCATENATION": 3, "SOFTMAX": 3, "LOGISTIC": 3, "TANH": 3, "MEAN": 3,
    "MAXIMUM": 4, "MINIMUM": 4, "QUANTIZE": 2, "BATCH_MATMUL": 3, "TRANSPOSE": 4, "SPLIT": 4, "SLICE": 4, "RSQRT": 3,
    "REDUCE_MAX": 3, "REDUCE_MIN": 3, "RELU": 3, "RELU6": 3, "DEQUANTIZE": 3, "GATHER": 4, "PAD": 3, "PADV2": 3,
    "STRIDED_SLICE": 4, "ABS": 3, "MIRROR_PAD": 3,
}  # fmt: skip
# The lowest version of operators whose settings came later than the operator.
LOWEST_VERSIONS = {"BROADCAST_TO": 2, "RESIZE_BILINEAR": 3, "RESIZE_NEAREST_NEIGHBOR": 3}
_ENUMS = {
    "padding": "Padding",
    "fused_activation_function": "ActivationFunctionType",
    "mode": "MirrorPadMode",
}


@functools.cache
def schema() -> Any:
    """Returns the module with the schema's classes."""
    try:
        from ai_edge_litert import schema_py_generated
    except ImportError:
        raise ToolMissing("ai-edge-litert is not installed", "pip install 'anynpu[build]'") from None
    return schema_py_generated


def camel(name: str) -> str:
    """Returns a field's name as the generated classes spell it."""
    first, *others = name.split("_")
    return first + "".join(part[:1].upper() + part[1:] for part in others)


def type_code(dtype: str) -> int:
    """Returns the schema's number of a NumPy type."""
    return int(getattr(schema().TensorType, dtype.upper()))


def to_bytes(graph: Graph) -> bytes:
    """Returns the graph as the bytes of a .tflite file."""
    return pack_model(to_model(graph))


def to_model(graph: Graph) -> Any:
    """Returns the graph as the object that a .tflite file is packed from, and read into."""
    s = schema()
    model, subgraph = s.ModelT(), s.SubGraphT()
    numbers = {name: number for number, name in enumerate(graph.tensors)}
    numbers[""] = -1
    model.version, model.description = 3, "anynpu"
    model.buffers = [s.BufferT()]
    subgraph.tensors = [_tensor(tensor, model.buffers) for tensor in graph.tensors.values()]
    subgraph.inputs = np.asarray([numbers[n] for n in graph.inputs], np.int32)
    subgraph.outputs = np.asarray([numbers[n] for n in graph.outputs], np.int32)
    codes: dict[tuple[str, int], int] = {}
    subgraph.operators = [_operator(operator, graph, numbers, codes) for operator in graph.operators]
    subgraph.name = "main"
    model.subgraphs = [subgraph]
    model.operatorCodes = []
    for kind, version in codes:
        code = s.OperatorCodeT()
        code.builtinCode = getattr(s.BuiltinOperator, kind)
        code.deprecatedBuiltinCode, code.version = min(code.builtinCode, 127), version
        model.operatorCodes.append(code)
    model.signatureDefs = [_signature(graph, numbers)]
    return model


def _tensor(tensor: Tensor, buffers: list[Any]) -> Any:
    s = schema()
    result = s.TensorT()
    result.name, result.type = tensor.name, type_code(tensor.dtype)
    result.shape = np.asarray(tensor.shape, np.int32)
    result.buffer = 0
    if tensor.data is not None:
        buffer = s.BufferT()
        packed = PACKED.get(tensor.dtype)
        raw = np.ascontiguousarray(tensor.data, None if packed is not None else tensor.dtype)
        buffer.data = packed[0](raw) if packed is not None else raw.reshape(-1).view(np.uint8)
        result.buffer = len(buffers)
        buffers.append(buffer)
    if tensor.quantization is not None:
        parameters = s.QuantizationParametersT()
        parameters.scale = np.asarray(tensor.quantization.scale, np.float32)
        parameters.zeroPoint = np.asarray(tensor.quantization.zero_point, np.int64)
        parameters.quantizedDimension = tensor.quantization.axis or 0
        result.quantization = parameters
    return result


def packed_halves(values: Array) -> Array:
    """Returns integers of four bits two to a byte, the first in the lower half."""
    flat = np.asarray(values, np.int8).reshape(-1).view(np.uint8) & 0x0F
    pairs = np.pad(flat, (0, len(flat) % 2)).reshape(-1, 2)
    return np.asarray(pairs[:, 0] | pairs[:, 1] << 4, np.uint8)


def unpacked_halves(content: Array, count: int) -> Array:
    """Returns the integers of four bits that `packed_halves` packed, one to a byte."""
    both = np.stack([content & 0x0F, content >> 4], axis=1).reshape(-1)[:count].astype(np.int8)
    return np.asarray(np.where(both > 7, both - 16, both), np.int8)


PACKED: Mapping[str, tuple[Callable[[Array], Array], Callable[[Array, int], Array]]] = {
    "int4": (packed_halves, unpacked_halves)
}
"""How integers below a byte are packed, and how a number of them are unpacked again."""


def _operator(operator: Operator, graph: Graph, numbers: Mapping[str, int], codes: dict[tuple[str, int], int]) -> Any:
    s = schema()
    result = s.OperatorT()
    key = operator.kind, version_of(operator, graph)
    result.opcodeIndex = codes.setdefault(key, len(codes))
    result.inputs = np.asarray([numbers[n] for n in operator.inputs], np.int32)
    result.outputs = np.asarray([numbers[n] for n in operator.outputs], np.int32)
    table = table_name(operator)
    if table:
        result.builtinOptionsType = getattr(s.BuiltinOptions, table)
        settings = result.builtinOptions = getattr(s, f"{table}T")()
        for item in dataclasses.fields(operator.options) if operator.options is not None else ():
            value = getattr(operator.options, item.name)
            if item.name in _ENUMS:
                value = getattr(getattr(s, _ENUMS[item.name]), value)
            elif item.name in ("output_type", "in_data_type", "out_data_type"):
                value = type_code(value)
            elif isinstance(value, tuple):
                value = list(value)
            setattr(settings, camel(item.name), value)
    return result


def table_name(operator: Operator) -> str:
    """Returns the name of the schema's table for the operator's settings, empty where it has none."""
    if operator.options is not None:
        return f"{type(operator.options).__name__}Options"
    empty = EMPTY_TABLES.get(operator.kind)
    return f"{empty}Options" if empty else ""


def version_of(operator: Operator, graph: Graph) -> int:
    """Returns the operator's version: what its types need, and no more."""
    dtypes = {graph.tensors[name].dtype for name in (*operator.inputs[:1], *operator.outputs) if name}
    if operator.kind == "TRANSPOSE_CONV":
        dtypes = {graph.tensors[operator.inputs[2]].dtype}
    version = LOWEST_VERSIONS.get(operator.kind, 1)
    if dtypes & {"int8", "int16"}:
        version = max(version, BYTE_VERSIONS.get(operator.kind, 1))
    if "int16" in dtypes:
        version = max(version, WIDE_VERSIONS.get(operator.kind, 1))
    if operator.kind == "TRANSPOSE_CONV" and len(operator.inputs) > 3:
        version = max(version, 3 if operator.activation == "NONE" else 4)
    return version


def _signature(graph: Graph, numbers: Mapping[str, int]) -> Any:
    s = schema()
    result = s.SignatureDefT()
    result.signatureKey, result.subgraphIndex = "serving_default", 0

    def entry(name: str) -> Any:
        item = s.TensorMapT()
        item.name, item.tensorIndex = name, numbers[name]
        return item

    result.inputs, result.outputs = [entry(n) for n in graph.inputs], [entry(n) for n in graph.outputs]
    return result
