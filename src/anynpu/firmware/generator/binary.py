"""Operators of two tensors, element by element, with broadcasting."""

from __future__ import annotations

from dataclasses import dataclass

from anynpu.firmware.generator.boxes import broadcast_strides, filled, merged
from anynpu.firmware.generator.fixedpoint import RANGES, activation_range, quantize_multiplier
from anynpu.firmware.generator.graph import Graph, Node, scale_of, zero_of
from anynpu.firmware.generator.layer import Call, Layer, Tensor, Value, require
from anynpu.firmware.generator.logic import whole
from anynpu.firmware.generator.types import C_TYPES, SUFFIX

Factor = tuple[int, int]
"""A multiplier in Q0.31 and a left shift."""


def _require_type(graph: Graph, node: Node, dtypes: tuple[str, ...]) -> None:
    a, b, out = graph.input(node, 0), graph.input(node, 1), graph.output(node)
    require(a.dtype == b.dtype == out.dtype, f"mixes {a.dtype}, {b.dtype} and {out.dtype}")
    require(out.dtype in dtypes, f"has no kernel for {out.dtype}")


def _binary(graph: Graph, node: Node, kernel: str, params: dict[str, Value], dtypes: tuple[str, ...]) -> Layer:
    _require_type(graph, node, dtypes)
    a, b, out = graph.input(node, 0), graph.input(node, 1), graph.output(node)
    walks = [broadcast_strides(a.shape, out.shape), broadcast_strides(b.shape, out.shape)]
    sizes, steps = merged(out.shape, *walks)
    size, (stride1, stride2) = filled(sizes, steps)
    shape = {"size": size, "stride1": stride1, "stride2": stride2}
    ctype = C_TYPES[out.dtype]
    numbers = (node.inputs[0], node.inputs[1], node.outputs[0])
    call = Call(f"{kernel}_{SUFFIX[out.dtype]}", {"shape": shape, **params}, tuple(Tensor(n, ctype) for n in numbers))
    over = tuple(n for n in node.inputs[:2] if graph.tensors[n].bytes == out.bytes)
    return Layer(node, (call,), over=over)


@dataclass(frozen=True)
class Sum:
    """A sum or difference: what brings both inputs to one scale, and their sum to the output's."""

    twice: int
    """Twice the factor that gives values more bits: the kernels take the high word of a product of 64 bits."""
    zeros: tuple[int, int]
    factors: tuple[Factor, Factor, Factor]
    out_zero: int
    low: int
    high: int
    sign: int


def read_sum(graph: Graph, node: Node) -> Sum:
    """Returns an ADD or SUB in fixed point."""
    _require_type(graph, node, ("int8", "int16"))
    a, b, out = graph.input(node, 0), graph.input(node, 1), graph.output(node)
    zeros = (zero_of(a), zero_of(b))
    require(out.dtype == "int8" or zeros == (0, 0), "takes 16-bit tensors with zero point 0")
    bits = 15 if out.dtype == "int16" else 20
    twice = 2 * max(scale_of(a), scale_of(b))
    scales = (scale_of(a) / twice, scale_of(b) / twice, twice / ((1 << bits) * scale_of(out)))
    factors = (quantize_multiplier(scales[0]), quantize_multiplier(scales[1]), quantize_multiplier(scales[2]))
    require(factors[2][1] <= 0, "has an output scale far below those of its inputs")
    low, high = activation_range(out.dtype, node.options.fusedActivationFunction, scale_of(out), zero_of(out))
    return Sum(2 << bits, zeros, factors, zero_of(out), low, high, -1 if node.kind == "SUB" else 1)


def scaling(factor: Factor) -> dict[str, int]:
    """Returns the fields of anynpu_scaling for a factor of one or less."""
    multiplier, shift = factor if factor[1] > -31 else (0, 0)  # nothing is left of 31 bits
    return {"multiplier": multiplier, "right": -shift, "half": 1 << -shift >> 1, "away": -1 if shift else 0}


def _sum(graph: Graph, node: Node) -> Layer:
    s = read_sum(graph, node)
    params: dict[str, Value] = {
        "twice": s.twice,
        "zero1": s.zeros[0],
        "zero2": s.zeros[1],
        "scaling1": scaling(s.factors[0]),
        "scaling2": scaling(s.factors[1]),
        "scaling": scaling(s.factors[2]),
        "out_zero": s.out_zero,
        "low": s.low,
        "high": s.high,
        "sign": s.sign,
    }
    return _binary(graph, node, "add", params, ("int8", "int16"))


def add(graph: Graph, node: Node) -> Layer:
    """ADD."""
    return whole(graph, node) if graph.output(node).dtype == "int32" else _sum(graph, node)


def sub(graph: Graph, node: Node) -> Layer:
    """SUB."""
    return whole(graph, node) if graph.output(node).dtype == "int32" else _sum(graph, node)


def mul(graph: Graph, node: Node) -> Layer:
    """MUL."""
    if graph.output(node).dtype == "int32":
        return whole(graph, node)
    _require_type(graph, node, ("int8", "int16"))
    a, b, out = graph.input(node, 0), graph.input(node, 1), graph.output(node)
    m, s = quantize_multiplier(scale_of(a) * scale_of(b) / scale_of(out))
    low, high = activation_range(out.dtype, node.options.fusedActivationFunction, scale_of(out), zero_of(out))
    params: dict[str, Value] = {
        "zero1": zero_of(a),
        "zero2": zero_of(b),
        "out_zero": zero_of(out),
        "multiplier": m,
        "shift": s,
        "low": low,
        "high": high,
    }
    return _binary(graph, node, "mul", params, ("int8", "int16"))


def maximum(graph: Graph, node: Node) -> Layer:
    """MAXIMUM."""
    if graph.output(node).dtype == "int32":
        return whole(graph, node)
    return _binary(graph, node, "maximum", {}, ("int8", "int16"))


def minimum(graph: Graph, node: Node) -> Layer:
    """MINIMUM."""
    if graph.output(node).dtype == "int32":
        return whole(graph, node)
    return _binary(graph, node, "minimum", {}, ("int8", "int16"))


def squared_difference(graph: Graph, node: Node) -> Layer:
    """SQUARED_DIFFERENCE."""
    _require_type(graph, node, ("int8",))
    a, b, out = graph.input(node, 0), graph.input(node, 1), graph.output(node)
    bits = 0 if out.dtype == "int16" else 7
    twice = 2.0 * max(scale_of(a), scale_of(b))
    m1, s1 = quantize_multiplier(scale_of(a) / twice)
    m2, s2 = quantize_multiplier(scale_of(b) / twice)
    m, s = quantize_multiplier(twice * twice / ((1 << (bits * 2)) * scale_of(out)))
    low, high = RANGES[out.dtype]
    params: dict[str, Value] = {
        "left_shift": bits,
        "zero1": zero_of(a),
        "zero2": zero_of(b),
        "out_zero": zero_of(out),
        "multiplier1": m1,
        "multiplier2": m2,
        "multiplier": m,
        "shift1": s1,
        "shift2": s2,
        "shift": s,
        "low": low,
        "high": high,
    }
    return _binary(graph, node, "squared_difference", params, ("int8",))


def prelu(graph: Graph, node: Node) -> Layer:
    """PRELU."""
    _require_type(graph, node, ("int8",))
    a, slope, out = graph.input(node, 0), graph.input(node, 1), graph.output(node)
    m1, s1 = quantize_multiplier(scale_of(a) / scale_of(out))
    m2, s2 = quantize_multiplier(scale_of(a) * scale_of(slope) / scale_of(out))
    params: dict[str, Value] = {
        "zero1": zero_of(a),
        "zero2": zero_of(slope),
        "out_zero": zero_of(out),
        "multiplier1": m1,
        "shift1": s1,
        "multiplier2": m2,
        "shift2": s2,
    }
    return _binary(graph, node, "prelu", params, ("int8",))
