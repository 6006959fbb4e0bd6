"""ONNX nodes that stand for one that TFLite has no form of, as they are written."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from onnx import helper

from anynpu.lowering.table import Node
from anynpu.tensors import Array


@dataclass
class Draft:
    """The nodes that stand for one, and the constants they read."""

    result: str
    shapes: dict[str, tuple[int, ...]]
    constants: dict[str, Array]
    reals: frozenset[str]
    """The tensors that hold real numbers."""
    makers: dict[str, onnx.NodeProto]
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    stored: dict[str, Array] = field(default_factory=dict)

    def add(self, op: str, inputs: list[str], last: bool = False, **settings: Any) -> str:
        """Adds a node and returns the name of its result; the last one gives the result of the whole."""
        name = self.result if last else f"{self.result}/{op}{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, inputs, [name], name=name, **settings))
        return name

    def store(self, array: Array, what: str) -> str:
        """Returns the name of a new constant."""
        name = f"{self.result}/{what}{len(self.stored)}"
        self.stored[name] = array
        return name

    def reshape(self, source: str, *shape: int, last: bool = False) -> str:
        """Returns the same values in another shape."""
        return self.add("Reshape", [source, self.store(np.asarray(shape, np.int64), "shape")], last)

    def near(self, places: str, positions: Array) -> str:
        """Returns how near computed places are to stored positions: one at it, nothing from one step away on."""
        away = self.add("Sub", [places, self.store(positions, "positions")])
        one = self.store(np.ones((), np.float32), "one")
        sides = [self.add("Relu", [self.add(kind, [one, away])]) for kind in ("Add", "Sub")]
        return self.add("Min", sides)


def spans(node: Node, size: list[int], kernel: list[int]) -> tuple[list[int], list[int], list[int]]:
    """Returns the pads, strides and dilations of a window."""
    strides = node.integers("strides", [1] * len(size))
    dilations = node.integers("dilations", [1] * len(size))
    how = node.get("auto_pad", "NOTSET")
    if how in ("SAME_UPPER", "SAME_LOWER"):
        extents = [(k - 1) * d + 1 for k, d in zip(kernel, dilations, strict=True)]
        needed = [max(0, (-(-n // s) - 1) * s + e - n) for n, s, e in zip(size, strides, extents, strict=True)]
        small, large = [n // 2 for n in needed], [n - n // 2 for n in needed]
        return (small + large if how == "SAME_UPPER" else large + small), strides, dilations
    return (node.integers("pads", [0] * 2 * len(size)) if how == "NOTSET" else [0] * 2 * len(size)), strides, dilations
