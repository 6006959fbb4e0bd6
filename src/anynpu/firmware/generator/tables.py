"""Operators of one 8-bit tensor, element by element: whatever they compute is a table of 256 values."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from anynpu.firmware.generator import fixedpoint as fp
from anynpu.firmware.generator.graph import Graph, Node, scale_of, values, zero_of
from anynpu.firmware.generator.layer import Call, Constant, Emitter, Layer, Tensor, Value, require
from anynpu.firmware.generator.types import C_TYPES, SUFFIX
from anynpu.runtime.ethos_u.curves import logistic_steps
from anynpu.targets.flatbuffer import TfliteTensor

Function = Callable[[int], int]
BYTE_TYPES = ("int8", "uint8")


def byte_table(node: Node, source: TfliteTensor, target: TfliteTensor, function: Function) -> Layer:
    """Returns the layer that looks every byte up; the table is ordered by the byte, not by its sign."""
    raw = np.arange(256, dtype=np.uint8).view(source.dtype).tolist()
    table = np.array([function(int(v)) for v in raw]).astype(target.dtype)
    params: dict[str, Value] = {
        "table": Constant("table", "uint8_t", table.view(np.uint8)),
        "count": math.prod(source.shape),
    }
    arguments = (Tensor(node.inputs[0], "uint8_t"), Tensor(node.outputs[0], "uint8_t"))
    return Layer(node, (Call("table_u8", params, arguments),), over=(node.inputs[0],))


def _unary(make: Callable[[Node, TfliteTensor, TfliteTensor], Function]) -> Emitter:
    """Returns the emitter of an operator from int8 to int8."""

    def emit(graph: Graph, node: Node) -> Layer:
        source, target = graph.input(node, 0), graph.output(node)
        require(source.dtype == target.dtype == "int8", f"has no kernel for {source.dtype}")
        return byte_table(node, source, target, make(node, source, target))

    emit.__doc__ = make.__doc__
    return emit


def _saturated(value: int, dtype: str = "int8") -> int:
    return fp.clamp(value, *fp.RANGES[dtype])


def _curve(source: TfliteTensor) -> tuple[int, int, int]:
    """Returns multiplier, shift and radius that bring an input to four integer bits."""
    multiplier, shift = fp.quantize_multiplier(min(scale_of(source) * (1 << 27), float(fp.INT32_MAX)))
    require(multiplier > 0 and shift >= 0, "has an input scale that is too small")
    return multiplier, shift, math.floor(15 * (1 << 27) / (1 << shift))


_WIDE_BITS = {"LOGISTIC": 9, "TANH": 8}


def _wide_curve(graph: Graph, node: Node) -> Layer:
    """Returns LOGISTIC or TANH of int16, which TFLite reads between 256 entries of one table."""
    source = graph.input(node, 0)
    mantissa, exponent = math.frexp(scale_of(source))
    factor, shift = 3 << max(0, exponent + 11), 0
    if mantissa != 0.5 or exponent + 11 not in (0, 1):
        steps = scale_of(source) * 4096 * 3  # of the table's places
        require(steps <= 32767, "has an input scale that is too large")
        while steps <= 32767 / 2 and shift <= 30:
            shift, steps = shift + 1, steps * 2
        factor = int(steps)
    params: dict[str, Value] = {
        "count": math.prod(source.shape),
        "multiplier": factor,
        "shift": shift,
        "bits": _WIDE_BITS[node.kind],
        "table": Constant("table", "uint16_t", logistic_steps(256).astype(np.uint16), 2),
    }
    arguments = (Tensor(node.inputs[0], "int16_t"), Tensor(node.outputs[0], "int16_t"))
    return Layer(node, (Call("curve_s16", params, arguments),), over=(node.inputs[0],))


def logistic(graph: Graph, node: Node) -> Layer:
    """LOGISTIC."""
    return (_wide_curve if graph.input(node, 0).dtype == "int16" else _logistic8)(graph, node)


def tanh(graph: Graph, node: Node) -> Layer:
    """TANH."""
    return (_wide_curve if graph.input(node, 0).dtype == "int16" else _tanh8)(graph, node)


@_unary
def _logistic8(node: Node, source: TfliteTensor, target: TfliteTensor) -> Function:
    """LOGISTIC of int8."""
    require(zero_of(target) == -128, "takes an output with zero point -128")
    multiplier, shift, radius = _curve(source)

    def function(value: int) -> int:
        value -= zero_of(source)
        if abs(value) >= radius:
            return 127 if value > 0 else -128
        return _saturated(fp.divide_power(fp.logistic(fp.multiply(value, multiplier, shift), 4), 23) - 128)

    return function


@_unary
def _tanh8(node: Node, source: TfliteTensor, target: TfliteTensor) -> Function:
    """TANH of int8."""
    multiplier, shift, radius = _curve(source)

    def function(value: int) -> int:
        value -= zero_of(source)
        if abs(value) >= radius:
            return 127 if value > 0 else -128
        return _saturated(fp.divide_power(fp.tanh(fp.multiply(value, multiplier, shift), 4), 24))

    return function


def leaky_relu(graph: Graph, node: Node) -> Layer:
    """LEAKY_RELU."""
    return (_leaky16 if graph.input(node, 0).dtype == "int16" else _leaky8)(graph, node)


def _slopes(node: Node, source: TfliteTensor, target: TfliteTensor) -> tuple[tuple[int, int], tuple[int, int], int]:
    """Returns multiplier and shift above and below zero, and the sign of the slope below."""
    slope = scale_of(source) * node.options.alpha / scale_of(target)
    above = fp.quantize_multiplier(scale_of(source) / scale_of(target))
    return above, fp.quantize_multiplier(abs(slope)), -1 if slope < 0 else 1


@_unary
def _leaky8(node: Node, source: TfliteTensor, target: TfliteTensor) -> Function:
    """LEAKY_RELU of int8."""
    identity, alpha, sign = _slopes(node, source, target)

    def function(value: int) -> int:
        value -= zero_of(source)
        scaled = fp.multiply(value, *identity) if value >= 0 else sign * fp.multiply(value, *alpha)
        return _saturated(scaled + zero_of(target))

    return function


def _leaky16(graph: Graph, node: Node) -> Layer:
    """Returns LEAKY_RELU of int16, whose zero points are zero."""
    source, target = graph.input(node, 0), graph.output(node)
    require(target.dtype == "int16", f"has no kernel for int16 to {target.dtype}")
    (multiplier1, shift1), (multiplier2, shift2), sign = _slopes(node, source, target)
    params: dict[str, Value] = {
        "count": math.prod(source.shape),
        "multiplier1": multiplier1,
        "shift1": shift1,
        "multiplier2": multiplier2,
        "shift2": shift2,
        "sign2": sign,
    }
    arguments = (Tensor(node.inputs[0], "int16_t"), Tensor(node.outputs[0], "int16_t"))
    return Layer(node, (Call("leaky_s16", params, arguments),), over=(node.inputs[0],))


@_unary
def hard_swish(node: Node, source: TfliteTensor, target: TfliteTensor) -> Function:
    """HARD_SWISH."""
    fine = scale_of(source) / 128
    out_wide, out_shift = fp.quantize_multiplier(fine / scale_of(target))
    gate_wide, gate_shift = fp.quantize_multiplier(fine / (3 / 32768))
    require(out_shift <= 0, "has an output scale far below that of its input")
    require(gate_shift > -16, "has an input scale that is too small")
    out_factor, gate_factor = _narrow(out_wide), _narrow(gate_wide)

    def function(value: int) -> int:
        hires = (value - zero_of(source)) * 128
        scaled = _high16(hires, out_factor)
        gate = _saturated(hires << (gate_shift - 1), "int16") if gate_shift > 0 else hires
        gate = _high16(gate, gate_factor)
        if gate_shift > 0:
            gate = _saturated(gate << 1, "int16")
        if gate_shift < 0:
            gate = fp.divide_power(gate, -gate_shift)
        product = scaled * ((gate + (1 << 15)) >> 1)  # the gate is relu6(x + 3) / 6, with 15 bits
        high = -(-product >> 15) if product < 0 else product >> 15
        return _saturated(fp.divide_power(high, -out_shift) + zero_of(target))

    return function


def _narrow(multiplier: int) -> int:
    return 32767 if multiplier >= fp.INT32_MAX - (1 << 15) else (multiplier + (1 << 15)) >> 16


def _high16(a: int, b: int) -> int:
    return 32767 if a == b == -32768 else (a * b + (1 << 14)) >> 15


def _abs(node: Node, source: TfliteTensor, target: TfliteTensor) -> Function:
    """ABS."""
    factor = fp.quantize_multiplier(scale_of(source) / scale_of(target))
    rescaled = source.scale != target.scale

    def function(value: int) -> int:
        magnitude = abs(value - zero_of(source))
        return _saturated((fp.multiply(magnitude, *factor) if rescaled else magnitude) + zero_of(target))

    return function


absolute = _unary(_abs)


def rsqrt(graph: Graph, node: Node) -> Layer:
    """RSQRT."""
    source, target = graph.input(node, 0), graph.output(node)
    if not source.dtype == target.dtype == "int16":
        return _rsqrt8(graph, node)
    multiplier, shift = fp.quantize_multiplier(1.0 / (math.sqrt(scale_of(source)) * scale_of(target)))
    require(-31 <= shift - 20 <= 30, "has scales that are too far apart")
    params: dict[str, Value] = {"count": math.prod(source.shape), "multiplier": multiplier, "shift": shift}
    arguments = (Tensor(node.inputs[0], "int16_t"), Tensor(node.outputs[0], "int16_t"))
    return Layer(node, (Call("rsqrt_s16", params, arguments),), over=(node.inputs[0],))


@_unary
def _rsqrt8(node: Node, source: TfliteTensor, target: TfliteTensor) -> Function:
    """RSQRT of int8."""
    multiplier, shift = fp.quantize_multiplier(1.0 / (math.sqrt(scale_of(source)) * scale_of(target)))

    def function(value: int) -> int:
        value -= zero_of(source)
        if value <= 0:  # the interpreter stops at a negative value; the largest result is what is nearest to right
            return 127
        inverse, inverse_shift = fp.inverse_root(value)
        scaled = fp.multiply(1, inverse, inverse_shift + 20)
        return _saturated(fp.multiply(scaled, multiplier, shift - 20) + zero_of(target))

    return function


def table(graph: Graph, node: Node) -> Layer:
    """TABLE: CAST, ADD and GATHER that read a table of 256 entries."""
    source, target = graph.input(node, 0), graph.output(node)
    entries = values(graph.input(node, 1)).tolist()
    return byte_table(node, source, target, lambda value: int(entries[value + 128]))


def relu(graph: Graph, node: Node) -> Layer:
    """RELU."""
    source, target = graph.input(node, 0), graph.output(node)
    require(source.dtype == target.dtype and source.dtype in SUFFIX, f"has no kernel for {source.dtype}")
    factor = fp.quantize_multiplier(scale_of(source) / scale_of(target))
    low, high = fp.RANGES[source.dtype]
    low = max(low, zero_of(target))
    if source.dtype == "int16":
        return rescale(node, source, target, factor, (low, high))

    def function(value: int) -> int:
        return fp.clamp(fp.multiply(value - zero_of(source), *factor) + zero_of(target), low, high)

    return byte_table(node, source, target, function)


def relu6(graph: Graph, node: Node) -> Layer:
    """RELU6."""
    source, target = graph.input(node, 0), graph.output(node)
    require(source.dtype == target.dtype and source.dtype in SUFFIX, f"has no kernel for {source.dtype}")
    six = zero_of(source) + fp.round_away(float(np.float32(6.0) / np.float32(scale_of(source))))
    require(six <= fp.INT32_MAX, "has an input scale that is too small")
    bounds = fp.clamp(six, *fp.RANGES[source.dtype])
    suffix = SUFFIX[source.dtype]
    params: dict[str, Value] = {"count": math.prod(source.shape), "low": zero_of(source), "high": bounds}
    ctype = C_TYPES[source.dtype]
    arguments = (Tensor(node.inputs[0], ctype), Tensor(node.outputs[0], ctype))
    return Layer(node, (Call(f"clamp_{suffix}", params, arguments),), over=(node.inputs[0],))


def rescale(
    node: Node, source: TfliteTensor, target: TfliteTensor, factor: tuple[int, int], bounds: tuple[int, int]
) -> Layer:
    """Returns the kernel that changes the quantisation of a tensor."""
    params: dict[str, Value] = {
        "count": math.prod(source.shape),
        "in_zero": zero_of(source),
        "out_zero": zero_of(target),
        "multiplier": factor[0],
        "shift": factor[1],
        "low": bounds[0],
        "high": bounds[1],
    }
    arguments = (Tensor(node.inputs[0], C_TYPES[source.dtype]), Tensor(node.outputs[0], C_TYPES[target.dtype]))
    kernel = f"rescale_{SUFFIX[source.dtype]}_{SUFFIX[target.dtype]}"
    over = (node.inputs[0],) if source.dtype == target.dtype else ()
    return Layer(node, (Call(kernel, params, arguments),), over=over)


def quantize(graph: Graph, node: Node) -> Layer:
    """QUANTIZE."""
    source, target = graph.input(node, 0), graph.output(node)
    if source.dtype == "float32":
        require(target.dtype in SUFFIX, f"turns {source.dtype} into {target.dtype}")
        low, high = fp.RANGES[target.dtype]
        params: dict[str, Value] = {
            "count": math.prod(source.shape),
            "scale": float(scale_of(target)),
            "zero": zero_of(target),
            "low": low,
            "high": high,
        }
        arguments = (Tensor(node.inputs[0], "float"), Tensor(node.outputs[0], C_TYPES[target.dtype]))
        return Layer(node, (Call(f"quantize_{SUFFIX[target.dtype]}", params, arguments),))
    factor = fp.quantize_multiplier(scale_of(source) / scale_of(target))
    if source.dtype in BYTE_TYPES and target.dtype in BYTE_TYPES and "int8" in (source.dtype, target.dtype):
        half = {("int8", "uint8"): -128, ("uint8", "int8"): 128}.get((source.dtype, target.dtype))

        def function(value: int) -> int:
            if factor == (1 << 30, 1) and zero_of(source) - zero_of(target) == half:
                return value - half
            return _saturated(fp.multiply(value - zero_of(source), *factor) + zero_of(target), target.dtype)

        return byte_table(node, source, target, function)
    require(source.dtype in SUFFIX and target.dtype in SUFFIX, f"turns {source.dtype} into {target.dtype}")
    return rescale(node, source, target, factor, fp.RANGES[target.dtype])


def dequantize(graph: Graph, node: Node) -> Layer:
    """DEQUANTIZE."""
    source, target = graph.input(node, 0), graph.output(node)
    require(source.dtype in SUFFIX and target.dtype == "float32", f"turns {source.dtype} into {target.dtype}")
    params: dict[str, Value] = {
        "count": math.prod(source.shape),
        "scale": float(scale_of(source)),
        "zero": zero_of(source),
    }
    arguments = (Tensor(node.inputs[0], C_TYPES[source.dtype]), Tensor(node.outputs[0], "float"))
    return Layer(node, (Call(f"dequantize_{SUFFIX[source.dtype]}", params, arguments),))
