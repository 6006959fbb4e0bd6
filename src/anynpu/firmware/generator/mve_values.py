"""Pools, reductions and operators on single values with Helium (MVE)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from anynpu.firmware.generator import binary, pooling, reduction
from anynpu.firmware.generator import softmax as softmax_
from anynpu.firmware.generator.graph import Graph, Node
from anynpu.firmware.generator.layer import Call, Emitter, Layer, Value, VariantEmitter


def _vectors(layer: Layer) -> Layer:
    """Returns the layer with the kernel of the same parameters for vectors."""
    (call,) = layer.calls
    return replace(layer, calls=(replace(call, kernel=call.kernel.replace("_s8", "_mve_s8")),))


def average_pool_2d(graph: Graph, node: Node) -> Layer | None:
    """AVERAGE_POOL_2D."""
    return _vectors(pooling.average_pool_2d(graph, node))


def max_pool_2d(graph: Graph, node: Node) -> Layer | None:
    """MAX_POOL_2D."""
    return _vectors(pooling.max_pool_2d(graph, node))


def _swapped(plain: Layer, kernel: str, params: dict[str, Value]) -> Layer:
    """Returns the layer with another kernel for the same tensors."""
    width = plain.calls[0].kernel.rsplit("_", 1)[1]
    return replace(plain, calls=(Call(f"{kernel}_{width}", params, plain.calls[0].arguments),))


def add(graph: Graph, node: Node) -> Layer | None:
    """ADD and SUB."""
    plain, s = binary.add(graph, node), binary.read_sum(graph, node)
    (m1, s1), (m2, s2), (m, shift) = s.factors
    params: dict[str, Value] = {
        "shape": plain.calls[0].params["shape"],
        "left_shift": s.twice.bit_length() - 2,
        "zero1": s.zeros[0],
        "zero2": s.zeros[1],
        "multiplier1": m1,
        "multiplier2": m2,
        "multiplier": m,
        "shift1": s1,
        "shift2": s2,
        "shift": shift,
        "sign": s.sign,
        "range": {"zero": s.out_zero, "low": s.low, "high": s.high},
    }
    return _swapped(plain, "add_mve", params)


def _ranged(fields: Mapping[str, Value]) -> dict[str, Value] | None:
    """Returns multiplier, shift and range of a kernel whose vectors only shift right; None where it does not."""
    numbers = {k: v for k in ("multiplier", "shift", "out_zero", "low", "high") if isinstance(v := fields[k], int)}
    if numbers["shift"] > 0:
        return None
    output = {"zero": numbers["out_zero"], "low": numbers["low"], "high": numbers["high"]}
    return {"multiplier": numbers["multiplier"], "shift": numbers["shift"], "range": output}


def mul(graph: Graph, node: Node) -> Layer | None:
    """MUL."""
    plain = binary.mul(graph, node)
    fields = plain.calls[0].params
    ranged = _ranged(fields)
    if ranged is None:
        return None
    return _swapped(plain, "mul_mve", {**{k: fields[k] for k in ("shape", "zero1", "zero2")}, **ranged})


def mean(graph: Graph, node: Node) -> Layer | None:
    """MEAN and SUM, over what lies side by side or over what is equally far apart."""
    plain = reduction.mean(graph, node) if node.kind == "MEAN" else reduction.sum_(graph, node)
    fields = plain.calls[0].params
    ranged = _ranged(fields)
    (size, stride), (reduced, reduced_stride) = (
        tuple(np.array(fields[prefix + name]) for name in ("size", "stride")) for prefix in ("", "reduced_")
    )
    if ranged is None or (reduced[:-1] > 1).any():
        return None
    count, apart = int(reduced[-1]), int(reduced_stride[-1])
    side_by_side = plain.calls[0].kernel == "mean_s8" and (count == 1 or apart == 1)
    if side_by_side and (size[:-1] == 1).all() and (size[-1] == 1 or stride[-1] == count):
        params = {"rows": int(size[-1]), "count": count, "offset": fields["offset"], **ranged}
        return _swapped(plain, "mean_rows_mve", params)
    if (size[:-2] > 1).any() or (size[-1] > 1 and stride[-1] != 1):
        return None
    params = {
        "outer": int(size[-2]),
        "outer_stride": int(stride[-2]),
        "inner": int(size[-1]),
        "count": count,
        "stride": apart,
        "offset": fields["offset"],
        **ranged,
    }
    return _swapped(plain, "mean_mve", params)


def softmax(graph: Graph, node: Node) -> Layer | None:
    """SOFTMAX."""
    return _vectors(softmax_.softmax(graph, node))


def table(emitter: Emitter) -> VariantEmitter:
    """Returns the emitter of an operator that may be a table of bytes, for vectors."""

    def emit(graph: Graph, node: Node) -> Layer | None:
        plain = emitter(graph, node)
        calls = [replace(call, kernel="table_mve_u8") for call in plain.calls if call.kernel == "table_u8"]
        return replace(plain, calls=tuple(calls)) if len(calls) == len(plain.calls) == 1 else None

    emit.__doc__ = emitter.__doc__
    return emit
