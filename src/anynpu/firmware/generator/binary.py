"""Operators of two tensors, element by element, with broadcasting."""

from __future__ import annotations

from anynpu.firmware.generator.boxes import broadcast_strides, filled, merged
from anynpu.firmware.generator.fixedpoint import RANGES, activation_range, quantize_multiplier
from anynpu.firmware.generator.graph import Graph, Node, scale_of, zero_of
from anynpu.firmware.generator.layer import Call, Layer, Tensor, Value, require
from anynpu.firmware.generator.types import C_TYPES, SUFFIX


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


def _sum(graph: Graph, node: Node, sign: int) -> Layer:
    _require_type(graph, node, ("int8", "int16"))
    a, b, out = graph.input(node, 0), graph.input(node, 1), graph.output(node)
    bits = 15 if out.dtype == "int16" else 20
    m1, m2, m = _factors(scale_of(a), scale_of(b), scale_of(out), bits)
    require(m[1] <= 0, "has an output scale far below those of its inputs")
    low, high = activation_range(out.dtype, node.options.fusedActivationFunction, scale_of(out), zero_of(out))
    params = {**_pair_params(graph, node, bits, (m1, m2, m)), "low": low, "high": high, "sign": sign}
    return _binary(graph, node, "add", params, ("int8", "int16"))


Factor = tuple[int, int]


def _factors(a: float, b: float, out: float, bits: int) -> tuple[Factor, Factor, Factor]:
    """Returns the factors of both inputs and of their sum."""
    twice = 2 * max(a, b)
    scale = twice / ((1 << bits) * out)
    return quantize_multiplier(a / twice), quantize_multiplier(b / twice), quantize_multiplier(scale)


def _pair_params(graph: Graph, node: Node, bits: int, factors: tuple[Factor, Factor, Factor]) -> dict[str, Value]:
    """Returns the fields that bring two inputs to one scale."""
    (m1, s1), (m2, s2), (m, s) = factors
    return {
        "left_shift": bits,
        "zero1": zero_of(graph.input(node, 0)),
        "zero2": zero_of(graph.input(node, 1)),
        "out_zero": zero_of(graph.output(node)),
        "multiplier1": m1,
        "multiplier2": m2,
        "multiplier": m,
        "shift1": s1,
        "shift2": s2,
        "shift": s,
    }


def add(graph: Graph, node: Node) -> Layer:
    """ADD."""
    return _sum(graph, node, 1)


def sub(graph: Graph, node: Node) -> Layer:
    """SUB."""
    return _sum(graph, node, -1)


def mul(graph: Graph, node: Node) -> Layer:
    """MUL."""
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
    return _binary(graph, node, "maximum", {}, ("int8", "int16"))


def minimum(graph: Graph, node: Node) -> Layer:
    """MINIMUM."""
    return _binary(graph, node, "minimum", {}, ("int8", "int16"))


def squared_difference(graph: Graph, node: Node) -> Layer:
    """SQUARED_DIFFERENCE."""
    _require_type(graph, node, ("int8",))
    a, b, out = graph.input(node, 0), graph.input(node, 1), graph.output(node)
    bits = 0 if out.dtype == "int16" else 7
    twice = 2.0 * max(scale_of(a), scale_of(b))
    scale = twice * twice / ((1 << (bits * 2)) * scale_of(out))
    factors = (
        quantize_multiplier(scale_of(a) / twice),
        quantize_multiplier(scale_of(b) / twice),
        quantize_multiplier(scale),
    )
    low, high = RANGES[out.dtype]
    params = {**_pair_params(graph, node, bits, factors), "low": low, "high": high}
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
