"""Pools and sums with Helium (MVE)."""

from __future__ import annotations

from dataclasses import replace

from anynpu.firmware.generator import binary, pooling
from anynpu.firmware.generator.graph import Graph, Node
from anynpu.firmware.generator.layer import Call, Layer, Value

PAIR = ("left_shift", "zero1", "zero2", "multiplier1", "multiplier2", "multiplier", "shift1", "shift2", "shift", "sign")


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


def _sum(plain: Layer, graph: Graph, node: Node) -> Layer | None:
    (call,) = plain.calls
    fields = call.params
    a, b, out = graph.input(node, 0), graph.input(node, 1), graph.output(node)
    if a.shape != out.shape or b.shape != out.shape:
        return None
    shifts = [fields[name] for name in ("shift1", "shift2", "shift")]
    if any(isinstance(shift, int) and shift > 0 for shift in shifts):
        return None
    params: dict[str, Value] = {
        "count": out.bytes,
        **{name: fields[name] for name in PAIR},
        "range": {"zero": int(fields["out_zero"]), "low": int(fields["low"]), "high": int(fields["high"])},  # type: ignore[arg-type]
    }
    return replace(plain, calls=(Call("add_mve_s8", params, call.arguments),))


def add(graph: Graph, node: Node) -> Layer | None:
    """ADD."""
    return _sum(binary.add(graph, node), graph, node)


def sub(graph: Graph, node: Node) -> Layer | None:
    """SUB."""
    return _sum(binary.sub(graph, node), graph, node)
