"""MAX_POOL_2D and AVERAGE_POOL_2D."""

from __future__ import annotations

from anynpu.firmware.generator.fixedpoint import activation_range
from anynpu.firmware.generator.graph import Graph, Node, scale_of, zero_of
from anynpu.firmware.generator.layer import Call, Layer, Tensor, Value, require
from anynpu.firmware.generator.types import C_TYPES, SUFFIX, same_quantization
from anynpu.firmware.generator.windows import window


def _pool(graph: Graph, node: Node, kernel: str) -> Layer:
    image, out = graph.input(node, 0), graph.output(node)
    require(image.dtype == out.dtype and image.dtype in ("int8", "int16"), f"has no kernel for {image.dtype}")
    require(same_quantization(image, out), "changes the quantisation")
    size = (node.options.filterHeight, node.options.filterWidth)
    low, high = activation_range(out.dtype, node.options.fusedActivationFunction, scale_of(out), zero_of(out))
    params: dict[str, Value] = {"window": window(node, image.shape, out.shape, size), "low": low, "high": high}
    ctype = C_TYPES[image.dtype]
    arguments = (Tensor(node.inputs[0], ctype), Tensor(node.outputs[0], ctype))
    return Layer(node, (Call(f"{kernel}_{SUFFIX[image.dtype]}", params, arguments),))


def max_pool_2d(graph: Graph, node: Node) -> Layer:
    """MAX_POOL_2D."""
    return _pool(graph, node, "max_pool")


def average_pool_2d(graph: Graph, node: Node) -> Layer:
    """AVERAGE_POOL_2D."""
    return _pool(graph, node, "average_pool")
