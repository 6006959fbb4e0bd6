"""Windows that slide over an image: their pads as ONNX states them and as TFLite can have them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from anynpu.lowering.graph import int32
from anynpu.lowering.lower import Lowering
from anynpu.lowering.options import Padding
from anynpu.lowering.table import Node, Refused

Pair = tuple[int, int]


@dataclass(frozen=True)
class Window:
    """A window over two axes; `begin` and `end` are the pads, `extra` what rounding up reads behind them."""

    size: Pair
    kernel: Pair
    strides: Pair
    dilations: Pair
    begin: Pair
    end: Pair
    output: Pair

    @property
    def reach(self) -> Pair:
        """How many elements the window spans on each axis."""
        first, second = ((k - 1) * d + 1 for k, d in zip(self.kernel, self.dilations, strict=True))
        return first, second

    @property
    def is_same(self) -> bool:
        """Whether TFLite's SAME means these pads: the odd element at the end, the result ceil(size / stride)."""
        for axis in range(2):
            total = max(0, (self.output[axis] - 1) * self.strides[axis] + self.reach[axis] - self.size[axis])
            if self.output[axis] != math.ceil(self.size[axis] / self.strides[axis]) or self.begin[axis] != total // 2:
                return False
        return True

    @property
    def needed(self) -> tuple[Pair, Pair]:
        """The pads at begin and end with which VALID gives this result; an end below zero is never read."""
        ends = [(self.output[a] - 1) * self.strides[a] + self.reach[a] - self.size[a] - self.begin[a] for a in range(2)]
        return self.begin, (max(0, ends[0]), max(0, ends[1]))


def window_of(node: Node, spatial: Sequence[int], kernel: Sequence[int]) -> Window:
    """Returns the window of a convolution or pooling node over an input with one or two spatial axes."""
    rank = len(spatial)
    if rank > 2:
        raise Refused(f"a window over {rank} axes")
    strides, dilations = node.integers("strides", [1] * rank), node.integers("dilations", [1] * rank)
    pads = node.integers("pads", [0] * (2 * rank))
    size = _two(spatial, 1)
    reach = [(k - 1) * d + 1 for k, d in zip(_two(kernel, 1), _two(dilations, 1), strict=True)]
    begin, end = _two(pads[:rank], 0), _two(pads[rank:], 0)
    step, automatic = _two(strides, 1), node.get("auto_pad", "NOTSET")
    if automatic in ("SAME_UPPER", "SAME_LOWER"):
        totals = [max(0, (math.ceil(s / t) - 1) * t + r - s) for s, t, r in zip(size, step, reach, strict=True)]
        small, large = [t // 2 for t in totals], [t - t // 2 for t in totals]
        upper = automatic == "SAME_UPPER"
        begin, end = _two(small if upper else large, 0), _two(large if upper else small, 0)
    elif automatic == "VALID":
        begin = end = (0, 0)
    up = bool(node.get("ceil_mode", 0))
    rounded = math.ceil if up else math.floor
    output = []
    for axis in range(2):
        count = rounded((size[axis] + begin[axis] + end[axis] - reach[axis]) / step[axis]) + 1
        if up and (count - 1) * step[axis] >= size[axis] + begin[axis]:
            count -= 1  # ONNX drops a window that starts in the pad behind the data
        output.append(count)
    return Window(size, _two(kernel, 1), step, _two(dilations, 1), begin, end, _two(output, 1))


def _two(values: Sequence[int], missing: int) -> Pair:
    """Returns one or two numbers as those of height and width."""
    first, second = (missing, *values) if len(values) == 1 else values
    return int(first), int(second)


def padded(at: Lowering, tensor: str, window: Window, lowest: bool = False) -> tuple[str, Padding]:
    """Returns the image with the pads that TFLite cannot state, and the padding of the operator behind it.

    Pads are zeros, or with `lowest` below every value: zeros too where nothing is negative.
    """
    if window.is_same:
        return tensor, "SAME"
    begin, end = window.needed
    if begin == end == (0, 0):
        return tensor, "VALID"
    return pad_image(at, tensor, begin, end, lowest), "VALID"


def pad_image(at: Lowering, tensor: str, begin: Pair, end: Pair, lowest: bool = False) -> str:
    """Returns the image with pads around it."""
    batch, height, width, channels = at.tensors[tensor].shape
    shape = (batch, height + begin[0] + end[0], width + begin[1] + end[1], channels)
    pads = at.store(int32([0, 0, begin[0], end[0], begin[1], end[1], 0, 0]).reshape(4, 2), "pads")
    if lowest and not never_negative(at, tensor):
        # Finite: an infinity would become the range of the tensor. Integers have their lowest code there.
        value = at.store(np.asarray(LOWEST, np.float32), "lowest")
        return at.emit("PADV2", (tensor, pads, value), shape, stem=tensor)
    return at.emit("PAD", (tensor, pads), shape, stem=tensor)


LOWEST = -1e30
"""What a maximum never chooses."""


def never_negative(at: Lowering, tensor: str) -> bool:
    """Tells whether a tensor has no values below zero, by the operator that makes it."""
    maker = next((o for o in reversed(at.operators) if tensor in o.outputs), None)
    if maker is None:
        return False
    if maker.kind in ("RELU", "RELU6", "LOGISTIC", "SOFTMAX"):
        return True
    passes = ("MAX_POOL_2D", "RESHAPE", "TRANSPOSE", "PAD", "AVERAGE_POOL_2D")
    return maker.kind in passes and never_negative(at, maker.inputs[0])
