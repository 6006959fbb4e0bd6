"""MEAN, SUM and REDUCE_MAX, REDUCE_MIN."""

from __future__ import annotations

import math

from anynpu.firmware.generator.boxes import filled, merged, strides
from anynpu.firmware.generator.fixedpoint import RANGES, quantize_multiplier
from anynpu.firmware.generator.graph import Graph, Node, scale_of, values, zero_of
from anynpu.firmware.generator.layer import Call, Layer, Tensor, Value, require
from anynpu.firmware.generator.types import C_TYPES, SUFFIX


def _walk(graph: Graph, node: Node) -> tuple[dict[str, Value], int]:
    """Returns the kept and the reduced axes as the kernels walk them, and how many values make one."""
    image, axes = graph.input(node, 0), graph.input(node, 1)
    require(axes.constant, "takes constant axes")
    rank = len(image.shape)
    reduced = {int(a) % rank for a in values(axes).reshape(-1)}
    steps = strides(image.shape)
    fields: dict[str, Value] = {}
    for prefix, chosen in (("", set(range(rank)) - reduced), ("reduced_", reduced)):
        order = sorted(chosen)
        sizes, (walk,) = merged([image.shape[a] for a in order], [steps[a] for a in order])
        full, (stride,) = filled(sizes, [walk])
        fields[f"{prefix}size"], fields[f"{prefix}stride"] = full, stride
    return fields, math.prod(image.shape[a] for a in reduced)


def _sum(graph: Graph, node: Node, mean_of: bool) -> Layer:
    image, out = graph.input(node, 0), graph.output(node)
    require(image.dtype == out.dtype and image.dtype in SUFFIX, f"has no kernel for {image.dtype}")
    fields, count = _walk(graph, node)
    multiplier, shift = quantize_multiplier(scale_of(image) / scale_of(out))
    if mean_of:
        bits = min(count.bit_length() - 1, 32, 31 + shift)
        multiplier, shift = (multiplier << bits) // count, shift - bits
    low, high = RANGES[out.dtype]
    params: dict[str, Value] = {
        **fields,
        "offset": zero_of(image) * count,
        "multiplier": multiplier,
        "shift": shift,
        "out_zero": zero_of(out),
        "low": low,
        "high": high,
    }
    ctype = C_TYPES[image.dtype]
    arguments = (Tensor(node.inputs[0], ctype), Tensor(node.outputs[0], ctype))
    return Layer(node, (Call(f"mean_{SUFFIX[image.dtype]}", params, arguments),))


def mean(graph: Graph, node: Node) -> Layer:
    """MEAN."""
    return _sum(graph, node, mean_of=True)


def sum_(graph: Graph, node: Node) -> Layer:
    """SUM."""
    return _sum(graph, node, mean_of=False)


def _extreme(graph: Graph, node: Node, kernel: str) -> Layer:
    image, out = graph.input(node, 0), graph.output(node)
    require(image.dtype == out.dtype and image.dtype in SUFFIX, f"has no kernel for {image.dtype}")
    require(image.scale == out.scale and image.zero_point == out.zero_point, "changes the quantisation")
    fields, _ = _walk(graph, node)
    ctype = C_TYPES[image.dtype]
    arguments = (Tensor(node.inputs[0], ctype), Tensor(node.outputs[0], ctype))
    return Layer(node, (Call(f"{kernel}_{SUFFIX[image.dtype]}", fields, arguments),))


def reduce_max(graph: Graph, node: Node) -> Layer:
    """REDUCE_MAX."""
    return _extreme(graph, node, "reduce_max")


def reduce_min(graph: Graph, node: Node) -> Layer:
    """REDUCE_MIN."""
    return _extreme(graph, node, "reduce_min")
