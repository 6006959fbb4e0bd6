"""Averages of windows with gaps, which ONNX has since opset 19 and quantised runtimes and NPUs do not."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from onnx import ModelProto, NodeProto, helper, numpy_helper

from anynpu.graph.attributes import attribute, numbers
from anynpu.graph.fold import copied, static_shapes, with_nodes
from anynpu.graph.opset import STANDARD
from anynpu.graph.passes import Pass
from anynpu.graph.shapes import infer
from anynpu.tensors import Array


@dataclass(frozen=True)
class _Span:
    """A window along one axis."""

    size: int
    results: int
    kernel: int
    stride: int
    step: int
    begin: int
    end: int
    """The pads that the node states."""

    @property
    def needed(self) -> int:
        """The pads behind the last element that the last window reaches."""
        return max(0, (self.results - 1) * self.stride + (self.kernel - 1) * self.step + 1 - self.size - self.begin)

    def counted(self, with_pads: bool) -> Array:
        """Returns how many elements of each window the average counts."""
        low, high = (-self.begin, self.size + self.end) if with_pads else (0, self.size)
        first = np.arange(self.results)[:, None] * self.stride - self.begin
        places = first + np.arange(self.kernel) * self.step
        return np.asarray(((places >= low) & (places < high)).sum(axis=1))


def _spans(node: NodeProto, before: Sequence[int], after: Sequence[int]) -> list[_Span]:
    """Returns the windows of an average along each axis."""
    kernel, axes = numbers(node, "kernel_shape"), len(before) - 2
    strides, steps = (numbers(node, name) or (1,) * axes for name in ("strides", "dilations"))
    pads = numbers(node, "pads") or (0,) * 2 * axes
    return [
        _Span(size, results, kernel[axis], strides[axis], steps[axis], pads[axis], pads[axis + axes])
        for axis, (size, results) in enumerate(zip(before[2:], after[2:], strict=True))
    ]


def with_convolutions(model: ModelProto) -> tuple[ModelProto, int]:
    """Returns the model with depthwise convolutions for averages of windows with gaps, and how many there are."""
    result, shapes, nodes, changed = copied(model), static_shapes(model.graph), list[NodeProto](), 0
    for node in result.graph.node:
        ours = node.op_type == "AveragePool" and node.domain in STANDARD and max(numbers(node, "dilations") or (1,)) > 1
        # ONNX, its reference and ONNX Runtime have three results where the pads follow from the shape.
        ours &= not any(each.name == "auto_pad" and each.s.startswith(b"SAME") for each in node.attribute)
        known = ours and node.input[0] in shapes and node.output[0] in shapes
        spans = _spans(node, shapes[node.input[0]], shapes[node.output[0]]) if known else []
        counts = np.ones((1,), np.int64)
        for span in spans:
            counts = counts[..., None] * span.counted(bool(attribute(node, "count_include_pad", 0)))
        if not spans or not counts.all():  # the mean of nothing is no number
            nodes.append(node)
            continue
        changed += 1
        name, channels, kernel = node.output[0], shapes[node.input[0]][1], [span.kernel for span in spans]
        weights = np.full((channels, 1, *kernel), 1 / math.prod(kernel), np.float32)
        ratio = (math.prod(kernel) / counts).astype(np.float32)[None]
        uneven = bool((ratio != 1).any())
        result.graph.initializer.append(numpy_helper.from_array(weights, f"{name}/weights"))
        settings: dict[str, Any] = {
            "kernel_shape": kernel,
            "strides": [span.stride for span in spans],
            "dilations": [span.step for span in spans],
            "pads": [*(span.begin for span in spans), *(span.needed for span in spans)],
            "group": channels,
        }
        inner = f"{name}/mean" if uneven else name
        nodes.append(helper.make_node("Conv", [node.input[0], f"{name}/weights"], [inner], name=node.name, **settings))
        if uneven:
            result.graph.initializer.append(numpy_helper.from_array(ratio, f"{name}/ratio"))
            nodes.append(helper.make_node("Mul", [inner, f"{name}/ratio"], [name]))
    return (infer(with_nodes(result, nodes), strict=False), changed) if changed else (model, 0)


DILATED = Pass("dilated-means", "averages of windows with gaps become depthwise convolutions", with_convolutions)
