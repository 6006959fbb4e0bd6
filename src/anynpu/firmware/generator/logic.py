"""Whole numbers and truth values: comparisons, choices, and what is computed of the numbers of words."""

from __future__ import annotations

import math

from anynpu.firmware.generator.boxes import broadcast_strides, filled, merged
from anynpu.firmware.generator.fixedpoint import RANGES
from anynpu.firmware.generator.graph import Graph, Node, scale_of, values
from anynpu.firmware.generator.layer import Call, Layer, Tensor, Value, require
from anynpu.firmware.generator.movement import item_of
from anynpu.firmware.generator.tables import byte_table
from anynpu.firmware.generator.types import SUFFIX, same_quantization

# What holds where the first number is below, the same as and above the second.
_HOLDS = {
    "EQUAL": (0, 1, 0),
    "NOT_EQUAL": (1, 0, 1),
    "LESS": (1, 0, 0),
    "LESS_EQUAL": (1, 1, 0),
    "GREATER": (0, 0, 1),
    "GREATER_EQUAL": (0, 1, 1),
}
_SIGNS = {"ADD": "+", "SUB": "-", "MUL": "*", "DIV": "/", "MINIMUM": "<", "MAXIMUM": ">"}
_LETTERS = {"bool": "b", "int16": "s", "int32": "i", "float32": "f"}


def _pair(graph: Graph, node: Node, kernel: str, params: dict[str, Value], ctypes: tuple[str, str]) -> Layer:
    """Returns the call of a kernel over two broadcast tensors, with the type that it reads and the one it writes."""
    a, b, out = graph.input(node, 0), graph.input(node, 1), graph.output(node)
    walks = [broadcast_strides(a.shape, out.shape), broadcast_strides(b.shape, out.shape)]
    size, (stride1, stride2) = filled(*merged(out.shape, *walks))
    shape = {"size": size, "stride1": stride1, "stride2": stride2}
    arguments = (*(Tensor(number, ctypes[0]) for number in node.inputs[:2]), Tensor(node.outputs[0], ctypes[1]))
    return Layer(node, (Call(kernel, {"shape": shape, **params}, arguments),))


def compare(graph: Graph, node: Node) -> Layer:
    """EQUAL, NOT_EQUAL, LESS, LESS_EQUAL, GREATER and GREATER_EQUAL of whole numbers, or of int8 and int16 at one
    scale."""
    a, b = graph.input(node, 0), graph.input(node, 1)
    require(a.dtype == b.dtype and a.dtype in ("int32", *SUFFIX), f"has no kernel for {a.dtype}")
    params = dict[str, Value](zip(("below", "same", "above"), _HOLDS[node.kind], strict=True))
    if a.dtype == "int32":
        return _pair(graph, node, "compare_s32", params, ("int32_t", "uint8_t"))
    require(same_quantization(a, b), "compares numbers of two scales")
    if a.dtype == "int16":
        return _pair(graph, node, "compare_s16", params, ("int16_t", "uint8_t"))
    # TFLite-Micro compares in steps of 2^-8, and finer numbers are the same to it.
    require(2.0**-7 <= scale_of(a) < 1.0, "has a scale at which TFLite-Micro does not tell numbers apart")
    return _pair(graph, node, "compare_s8", params, ("int8_t", "int8_t"))


def whole(graph: Graph, node: Node) -> Layer:
    """ADD, SUB, MUL, DIV, MINIMUM and MAXIMUM of whole numbers."""
    require(graph.input(node, 1).dtype == "int32", "mixes types")
    fused = getattr(node.options, "fusedActivationFunction", 0)
    require(fused in (0, 1), "has a fused activation that is not RELU")
    low, high = RANGES["int32"]
    params: dict[str, Value] = {"kind": ord(_SIGNS[node.kind]), "low": 0 if fused else low, "high": high}
    return _pair(graph, node, "whole_s32", params, ("int32_t", "int32_t"))


def quotient(graph: Graph, node: Node) -> Layer:
    """DIV of whole numbers by stored ones, towards zero."""
    divisor = graph.input(node, 1)
    require(graph.output(node).dtype == "int32", f"has no kernel for {graph.output(node).dtype}")
    require(
        divisor.constant and divisor.dtype == "int32" and bool(values(divisor).all()), "divides by computed numbers"
    )
    return whole(graph, node)


def logical_not(graph: Graph, node: Node) -> Layer:
    """LOGICAL_NOT."""
    source, target = graph.input(node, 0), graph.output(node)
    return byte_table(node, source, target, lambda value: not value)


def logical(graph: Graph, node: Node) -> Layer:
    """LOGICAL_AND and LOGICAL_OR: the smaller and the larger of two truth values."""
    kernel = "minimum_s8" if node.kind == "LOGICAL_AND" else "maximum_s8"
    return _pair(graph, node, kernel, {}, ("int8_t", "int8_t"))


def select(graph: Graph, node: Node) -> Layer:
    """SELECT_V2."""
    condition, a, b = (graph.input(node, place) for place in range(3))
    out = graph.output(node)
    require(condition.dtype == "bool" and a.dtype == b.dtype == out.dtype, f"mixes {a.dtype} and {b.dtype}")
    require(same_quantization(a, out) and same_quantization(b, out), "changes the quantisation")
    item = item_of(out)
    walks = [broadcast_strides(tensor.shape, out.shape) for tensor in (condition, a, b)]
    size, (stride, first, second) = filled(*merged(out.shape, *walks))
    params: dict[str, Value] = {
        "size": size,
        "stride": stride,
        "stride1": tuple(step * item for step in first),
        "stride2": tuple(step * item for step in second),
        "bytes": item,
    }
    types = ("uint8_t", "void", "void", "void")
    numbers = (*node.inputs[:3], node.outputs[0])
    arguments = tuple(Tensor(number, ctype) for number, ctype in zip(numbers, types, strict=True))
    return Layer(node, (Call("select", params, arguments),))


def cast(graph: Graph, node: Node) -> Layer:
    """CAST of truth values and whole numbers, and of 16 bits to 32."""
    source, target = graph.input(node, 0), graph.output(node)
    fits = source.dtype in ("bool", "int32") and target.dtype in _LETTERS
    fits |= (source.dtype, target.dtype) == ("int16", "int32")
    require(fits, f"turns {source.dtype} into {target.dtype}")
    params: dict[str, Value] = {
        "count": math.prod(source.shape),
        "from": ord(_LETTERS[source.dtype]),
        "to": ord(_LETTERS[target.dtype]),
    }
    return Layer(node, (Call("cast", params, (Tensor(node.inputs[0], "void"), Tensor(node.outputs[0], "void"))),))
