"""RESIZE_NEAREST_NEIGHBOR and RESIZE_BILINEAR: which pixels make which is a table of rows and one of columns."""

from __future__ import annotations

import math

import numpy as np

from anynpu.firmware.generator.fixedpoint import round_away
from anynpu.firmware.generator.graph import Graph, Node
from anynpu.firmware.generator.layer import Call, Constant, Layer, Tensor, Value, require
from anynpu.firmware.generator.movement import item_of
from anynpu.firmware.generator.types import C_TYPES, SUFFIX, same_quantization
from anynpu.tensors import Array


def _sizes(image: tuple[int, ...], out: tuple[int, ...]) -> dict[str, Value]:
    require(len(image) == 4 and len(out) == 4, "takes images of four axes")
    return {
        "batches": image[0],
        "in_height": image[1],
        "in_width": image[2],
        "out_height": out[1],
        "out_width": out[2],
    }


def nearest(size: int, out: int, align: bool, half: bool) -> Array:
    """Returns for each output position the input position nearest to it, in float32 as the interpreter counts."""
    f = np.float32
    scale = f(size - 1) / f(out - 1) if align and out > 1 else f(size) / f(out)
    offset = f(0.5) if half else f(0.0)
    places = []
    for i in range(out):
        place = float((f(i) + offset) * scale)
        places.append(max(0, min(round_away(place) if align else math.floor(place), size - 1)))
    return np.array(places)


def between(size: int, out: int, align: bool, half: bool) -> Array:
    """Returns for each output position {lower, upper, weight of the upper in 1/1024}."""
    scale = (1024 * size + out // 2) // out
    if align and out > 1:
        scale = (1024 * (size - 1) + (out - 1) // 2) // (out - 1)
    rows = []
    for i in range(out):
        value = i * scale + (scale // 2 - 512 if half else 0)
        lower = max(int(value / 1024), 0)
        upper = min(int((value + 1023) / 1024), size - 1)
        rows.append((lower, upper, value - 1024 * lower))
    return np.array(rows, np.int64)


def resize_nearest_neighbor(graph: Graph, node: Node) -> Layer:
    """RESIZE_NEAREST_NEIGHBOR."""
    image, out = graph.input(node, 0), graph.output(node)
    sizes = _sizes(image.shape, out.shape)
    require(same_quantization(image, out), "changes the quantisation")
    require(image.dtype in ("int8", "int16"), f"has no kernel for {image.dtype}")
    modes = (bool(node.options.alignCorners), bool(node.options.halfPixelCenters))
    params: dict[str, Value] = {
        "rows": Constant("rows", "int16_t", nearest(image.shape[1], out.shape[1], *modes), 2),
        "columns": Constant("columns", "int16_t", nearest(image.shape[2], out.shape[2], *modes), 2),
        **sizes,
        "bytes": image.shape[3] * item_of(image),
    }
    arguments = (Tensor(node.inputs[0], "void"), Tensor(node.outputs[0], "void"))
    return Layer(node, (Call("resize_nearest", params, arguments),))


def resize_bilinear(graph: Graph, node: Node) -> Layer:
    """RESIZE_BILINEAR; in 16 bits as LiteRT rounds, since TFLite-Micro has none."""
    image, out = graph.input(node, 0), graph.output(node)
    sizes = _sizes(image.shape, out.shape)
    require(image.dtype == out.dtype and image.dtype in ("int8", "int16"), f"has no kernel for {image.dtype}")
    modes = (bool(node.options.alignCorners), bool(node.options.halfPixelCenters))
    params: dict[str, Value] = {
        "rows": Constant("rows", "anynpu_between", between(image.shape[1], out.shape[1], *modes), 6),
        "columns": Constant("columns", "anynpu_between", between(image.shape[2], out.shape[2], *modes), 6),
        **sizes,
        "depth": image.shape[3],
    }
    ctype = C_TYPES[image.dtype]
    arguments = (Tensor(node.inputs[0], ctype), Tensor(node.outputs[0], ctype))
    return Layer(node, (Call(f"resize_bilinear_{SUFFIX[image.dtype]}", params, arguments),))
