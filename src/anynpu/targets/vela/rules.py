"""Vela's constraints as functions: the docstring is Vela's sentence, word for word, and the key to its table.

A function returns whether an operator keeps the rule. A sentence of the table without a function here is judged by
Vela alone when it compiles; `NOT_EVALUATED` lists those.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from anynpu.targets.flatbuffer import TfliteOperator, TfliteTensor

Rule = Callable[[TfliteOperator], bool]
RULES: dict[str, Rule] = {}

WEIGHTED = {"CONV_2D", "DEPTHWISE_CONV_2D", "FULLY_CONNECTED", "TRANSPOSE_CONV"}
ALL_INPUTS = {"ADD", "SUB", "MUL", "DIV", "MAXIMUM", "MINIMUM", "SQUARED_DIFFERENCE", "BATCH_MATMUL", "CONCATENATION"}
ALL_INPUTS |= {"PACK", "SELECT", "SELECT_V2", "EQUAL", "NOT_EQUAL", "GREATER", "GREATER_EQUAL", "LESS", "LESS_EQUAL"}
FIRST_FEATURE_MAP = {"SPLIT": 1, "TRANSPOSE_CONV": 2}

NOT_EVALUATED = (
    "Implicit gate calculation is not supported.",
    "Peephole variant is not supported.",
    "Projection is not supported.",
    "Gate normalization is not supported.",
    "Axis attribute is not supported.",
    "Shape tensor must be constant",
    "Index tensor must be constant",
    "Index tensor must have channel=1",
    "Index tensor elements must be unique",
    "axis must be equal to batch_dims",
    "Variable handle tensors must be Resource. Variable data tensors must be one of"
    ' {"BOOL", "INT16", "INT32", "INT64", "INT8", "UINT8"}',
)


def key(sentence: str) -> str:
    """Returns the sentence with single spaces: Vela's run over several lines."""
    return " ".join(sentence.split())


def rule(function: Rule) -> Rule:
    """Registers a function under its docstring."""
    RULES[key(function.__doc__ or "")] = function
    return function


def said(sentence: str, function: Rule) -> None:
    """Registers a function under a sentence that differs between the families only in its figures."""
    RULES[key(sentence)] = function


def ifms(op: TfliteOperator) -> list[TfliteTensor]:
    """The feature maps that go in."""
    if op.kind in ALL_INPUTS:
        return [t for t in op.inputs if t is not None]
    first = FIRST_FEATURE_MAP.get(op.kind, 0)
    return [t for t in op.inputs[first : first + 1] if t is not None]


def weights(op: TfliteOperator) -> TfliteTensor | None:
    return op.inputs[1] if op.kind in WEIGHTED and len(op.inputs) > 1 else None


def bias(op: TfliteOperator) -> TfliteTensor | None:
    position = 3 if op.kind == "TRANSPOSE_CONV" else 2
    return op.inputs[position] if op.kind in WEIGHTED and len(op.inputs) > position else None


def maps(op: TfliteOperator) -> list[TfliteTensor]:
    return [*ifms(op), *op.outputs]


def parameters(op: TfliteOperator) -> list[TfliteTensor]:
    inputs = {id(t) for t in ifms(op)}
    return [t for t in op.inputs if t is not None and id(t) not in inputs]


def nhwc(tensor: TfliteTensor) -> tuple[int, int, int, int]:
    """The shape as Vela sees it: filled up with ones in front, further dimensions folded into the batch."""
    shape = (1, 1, 1, *tensor.shape)
    return math.prod(shape[:-3]), shape[-3], shape[-2], shape[-1]


def option(op: TfliteOperator, name: str, default: Any = 1) -> Any:
    return getattr(op.options, name, default)


@rule
def _static(op: TfliteOperator) -> bool:
    """Only the first dimension of tensors can be dynamic."""
    return all(-1 not in t.signature[1:] for t in op.tensors)


@rule
def _has_input(op: TfliteOperator) -> bool:
    """Operations must have at least one IFM."""
    return bool(ifms(op))


@rule
def _has_output(op: TfliteOperator) -> bool:
    """Operations must have at least one OFM."""
    return bool(op.outputs)


@rule
def _constant_shape(op: TfliteOperator) -> bool:
    """Tensors must have constant shape."""
    return all(size > 0 for t in op.tensors for size in t.shape)


@rule
def _per_tensor(op: TfliteOperator) -> bool:
    """Per-axis quantization is not supported."""
    return all(len(t.scale) <= 1 for t in maps(op))


@rule
def _quantized(op: TfliteOperator) -> bool:
    """Input(s), Output and Weight tensors must have quantization parameters."""
    filters = weights(op)
    return all(t.scale for t in [*maps(op), *([filters] if filters else [])])


@rule
def _positive_scale(op: TfliteOperator) -> bool:
    """Quantization scale of any tensor must be positive."""
    return all(s > 0 for t in maps(op) for s in t.scale)


def _types(*names: str) -> Rule:
    return lambda op: all(t.dtype in names for t in maps(op))


said(
    'Feature-map dataTypes must be one of {"INT16", "INT32", "INT64", "INT8", "UINT8"}',
    _types("int16", "int32", "int64", "int8", "uint8"),
)
said(
    'Feature-map dataTypes must be one of {"BOOL", "INT16", "INT32", "INT64", "INT8", "UINT8"}',
    _types("bool", "int16", "int32", "int64", "int8", "uint8"),
)


@rule
def _no_64_bit(op: TfliteOperator) -> bool:
    """64-bit feature-maps are not supported."""
    return all(t.dtype not in ("int64", "uint64") for t in maps(op))


@rule
def _no_32_bit(op: TfliteOperator) -> bool:
    """32-bit feature-maps are not supported."""
    return all(t.dtype not in ("int32", "uint32") for t in maps(op))


@rule
def _zero_points(op: TfliteOperator) -> bool:
    """Zero-points must be 0 for Int32 and non-negative for unsigned dataTypes"""
    return all(
        z == 0 if t.dtype == "int32" else z >= 0 or not t.dtype.startswith("u") for t in maps(op) for z in t.zero_point
    )


@rule
def _input_zero_points(op: TfliteOperator) -> bool:
    """IFM Zero-points must be in the range:
    - Int8: (-128 <= zp <= 127).
    - UInt8: (0 <= zp <= 255).
    - UInt16: zp must be 0 or 32768.
    - Other: zp must be 0."""
    allowed = {"int8": range(-128, 128), "uint8": range(256), "uint16": (0, 32768)}
    return all(z in allowed.get(t.dtype, (0,)) for t in ifms(op) for z in t.zero_point)


@rule
def _output_zero_points(op: TfliteOperator) -> bool:
    """OFM Zero-points must be in the range:
    - Signed-integer: (-128 <= zp <= 127)
    - Unsigned-integer: (0 <= zp <= 255) OR zp == 32768."""
    return all(
        0 <= z <= 255 or z == 32768 if t.dtype.startswith("u") else -128 <= z <= 127
        for t in op.outputs
        for z in t.zero_point
    )


@rule
def _constant_parameters(op: TfliteOperator) -> bool:
    """Parameter tensors must be constant"""
    return all(t.constant for t in parameters(op))


@rule
def _integer_parameters(op: TfliteOperator) -> bool:
    """Params tensor must be Int32 or Int64"""
    return all(t.dtype in ("int32", "int64") for t in parameters(op)[:1])


@rule
def _weights_8_bit(op: TfliteOperator) -> bool:
    """Weight tensors must be 8-bit precision"""
    filters = weights(op)
    return filters is None or filters.dtype in ("int8", "uint8")


@rule
def _bias_axis(op: TfliteOperator) -> bool:
    """Bias values must be stored in the channel axis"""
    values = bias(op)
    return values is None or not values.shape or math.prod(values.shape[:-1]) == 1


@rule
def _bias_constant(op: TfliteOperator) -> bool:
    """Bias tensors must be constant"""
    values = bias(op)
    return values is None or values.constant


@rule
def _bias_type(op: TfliteOperator) -> bool:
    """Bias tensors precision must be Int32 or Int64"""
    values = bias(op)
    return values is None or values.dtype in ("int32", "int64")


def _bias_below(limit: int) -> Rule:
    def holds(op: TfliteOperator) -> bool:
        values = bias(op)
        if values is None or values.data is None or values.dtype != "int64":
            return True
        return int(np.abs(values.data).max(initial=0)) < limit

    return holds


for _limit in (1099511627775, 281474976710655):
    said(f"Int64 bias must be smaller than {_limit}", _bias_below(_limit))


def _weight_sum(limit_8: int, limit_16: int) -> Rule:
    def holds(op: TfliteOperator) -> bool:
        filters = weights(op)
        if filters is None or filters.data is None or filters.dtype not in ("int8", "uint8"):
            return True
        values = np.abs(filters.data.astype(np.int64) - (filters.zero_point[:1] or (0,))[0]).reshape(filters.shape)
        # The channel that goes out is the last axis of a depthwise filter and the first of any other.
        channel = -1 if op.kind == "DEPTHWISE_CONV_2D" else 0
        sums = np.moveaxis(values, channel, 0).reshape(values.shape[channel], -1).sum(axis=1)
        return int(sums.max(initial=0)) <= (limit_16 if ifms(op)[0].dtype == "int16" else limit_8)

    return holds


for _limit in (8323072, 2130706432):
    said(
        "Weigth sum constraints: - IF 8-bit IFM: - The sum of absolute weights cannot exceed 8323072"
        f" - IF 16-bit IFM: - The sum of absolute weights cannot exceed {_limit}",
        _weight_sum(8323072, _limit),
    )
