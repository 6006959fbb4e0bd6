"""Operators of two tensors, element by element, with broadcasting."""

from __future__ import annotations

from anynpu.firmware.generator.boxes import broadcast_strides, filled, merged
from anynpu.firmware.generator.fixedpoint import RANGES, activation_range, quantize_multiplier
from anynpu.firmware.generator.graph import Graph, Node, scale_of, zero_of
from anynpu.firmware.generator.layer import Call, Layer, Tensor, Value, require
from anynpu.firmware.generator.types import C_TYPES, SUFFIX


def _binary(graph: Graph, node: Node, kernel: str, params: dict[str, Value], dtypes: tuple[str, ...]) -> Layer:
    a, b, out = graph.input(node, 0), graph.input(node, 1), graph.output(node)
    require(a.dtype == b.dtype == out.dtype, f"mixes {a.dtype}, {b.dtype} and {out.dtype}")
    require(out.dtype in dtypes, f"has no kernel for {out.dtype}")
    walks = [broadcast_strides(a.shape, out.shape), broadcast_strides(b.shape, out.shape)]
    sizes, steps = merged(out.shape, *walks)
    size, (stride1, stride2) = filled(sizes, steps)
    shape: Value = {"size": size, "stride1": stride1, "stride2": stride2}  # type: ignore[dict-item]
    ctype = C_TYPES[out.dtype]
    numbers = (node.inputs[0], node.inputs[1], node.outputs[0])
    call = Call(f"{kernel}_{SUFFIX[out.dtype]}", {"shape": shape, **params}, tuple(Tensor(n, ctype) for n in numbers))
    over = tuple(n for n in node.inputs[:2] if graph.tensors[n].bytes == out.bytes)
    return Layer(node, (call,), over=over)


def _sum(graph: Graph, node: Node, sign: int) -> Layer:
    a, b, out = graph.input(node, 0), graph.input(node, 1), graph.output(node)
    bits = 15 if out.dtype == "int16" else 20
    twice = 2 * max(scale_of(a), scale_of(b))
    m1, s1 = quantize_multiplier(scale_of(a) / twice)
    m2, s2 = quantize_multiplier(scale_of(b) / twice)
    m, s = quantize_multiplier(twice / ((1 << bits) * scale_of(out)))
    require(s <= 0, "has an output scale far below those of its inputs")
    low, high = activation_range(out.dtype, node.options.fusedActivationFunction, scale_of(out), zero_of(out))
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
        "sign": sign,
    }
    return _binary(graph, node, "add", params, ("int8", "int16"))


def add(graph: Graph, node: Node) -> Layer:
    """ADD."""
    return _sum(graph, node, 1)


def sub(graph: Graph, node: Node) -> Layer:
    """SUB."""
    return _sum(graph, node, -1)


def mul(graph: Graph, node: Node) -> Layer:
    """MUL."""
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
    return _binary(graph, node, "mul", params, ("int8",))


def maximum(graph: Graph, node: Node) -> Layer:
    """MAXIMUM."""
    return _binary(graph, node, "maximum", {}, ("int8",))


def minimum(graph: Graph, node: Node) -> Layer:
    """MINIMUM."""
    return _binary(graph, node, "minimum", {}, ("int8",))


def squared_difference(graph: Graph, node: Node) -> Layer:
    """SQUARED_DIFFERENCE."""
    a, b, out = graph.input(node, 0), graph.input(node, 1), graph.output(node)
    bits = 7
    twice = 2 * max(scale_of(a), scale_of(b))
    m1, s1 = quantize_multiplier(scale_of(a) / twice)
    m2, s2 = quantize_multiplier(scale_of(b) / twice)
    m, s = quantize_multiplier(twice * twice / ((1 << (bits * 2)) * scale_of(out)))
    low, high = RANGES[out.dtype] if out.dtype in RANGES else (0, 0)
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
