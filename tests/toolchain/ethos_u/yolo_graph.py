"""A detector of YOLOv8's structure with random weights, as a TFLite file: small enough to execute on every chip.

Convolutions with SiLU, C2f blocks, pyramid pooling, two ways through the pyramid, and heads with a softmax over bins.
"""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
from random_graphs import Drawer, Ref

SCALES = {"int8": 0.05, "int16": 0.0004}
BINS = 16


class YoloDrawer(Drawer):
    """Draws the blocks of YOLOv8; every activation has one scale, so that concatenations copy."""

    dtype = "int8"

    def same(self, shape: tuple[int, ...]) -> Ref:
        return self.new(shape, self.dtype, SCALES[self.dtype], 0)

    def filtered(self, x: Ref, count: int, kernel: int = 1, stride: int = 1) -> Ref:
        """A convolution without activation."""
        shape = (count, kernel, kernel, x.shape[3])
        scale = 1.5 / 127 / math.sqrt(kernel * kernel * x.shape[3])
        weights = self.tensor(shape, "int8", [scale] * count, 0, self.rng.integers(-127, 127, shape), 0)
        bias_type = "int32" if self.dtype == "int8" else "int64"
        bias = self.tensor((count,), bias_type, [x.scale * scale] * count, 0, self.rng.integers(-300, 300, count))
        out = self.same((1, -(-x.shape[1] // stride), -(-x.shape[2] // stride), count))
        settings = {"strideH": stride, "strideW": stride, "dilationHFactor": 1, "dilationWFactor": 1}
        self.operator("CONV_2D", [x.number, weights, bias], [out.number], "Conv2DOptions", padding=0, **settings)
        return out

    def silu(self, x: Ref) -> Ref:
        scale, zero = (1 / 256, -128) if self.dtype == "int8" else (1 / 32768, 0)
        gate, out = self.new(x.shape, self.dtype, scale, zero), self.same(x.shape)
        self.operator("LOGISTIC", [x.number], [gate.number])
        self.operator("MUL", [x.number, gate.number], [out.number], "MulOptions")
        return out

    def block(self, x: Ref, count: int, kernel: int = 3, stride: int = 1) -> Ref:
        return self.silu(self.filtered(x, count, kernel, stride))

    def joined(self, parts: list[Ref]) -> Ref:
        out = self.same((*parts[0].shape[:3], sum(part.shape[3] for part in parts)))
        numbers = [part.number for part in parts]
        self.operator("CONCATENATION", numbers, [out.number], "ConcatenationOptions", axis=3)
        return out

    def c2f(self, x: Ref, count: int, shortcut: bool) -> Ref:
        whole = self.block(x, count, 1)
        halves = [self.same((*whole.shape[:3], count // 2)) for _ in range(2)]
        given = [self.ints([3]), whole.number]
        self.operator("SPLIT", given, [half.number for half in halves], "SplitOptions", numSplits=2)
        inner = self.block(self.block(halves[1], count // 2), count // 2)
        if shortcut:
            added = self.same(inner.shape)
            self.operator("ADD", [halves[1].number, inner.number], [added.number], "AddOptions")
            inner = added
        return self.block(self.joined([*halves, inner]), count, 1)

    def sppf(self, x: Ref) -> Ref:
        parts = [self.block(x, x.shape[3] // 2, 1)]
        for _ in range(3):
            out = self.same(parts[-1].shape)
            settings = {"strideH": 1, "strideW": 1, "filterHeight": 5, "filterWidth": 5, "padding": 0}
            self.operator("MAX_POOL_2D", [parts[-1].number], [out.number], "Pool2DOptions", **settings)
            parts.append(out)
        return self.block(self.joined(parts), x.shape[3], 1)

    def doubled(self, x: Ref) -> Ref:
        size = [2 * x.shape[1], 2 * x.shape[2]]
        out = self.same((1, *size, x.shape[3]))
        options = {"alignCorners": False, "halfPixelCenters": False}
        given = [x.number, self.ints(size)]
        self.operator("RESIZE_NEAREST_NEIGHBOR", given, [out.number], "ResizeNearestNeighborOptions", **options)
        return out

    def head(self, x: Ref) -> None:
        """Boxes as a softmax over bins, classes as logistic values."""
        boxes = self.filtered(self.block(x, 16), 4 * BINS)
        rows = self.same((1, x.shape[1] * x.shape[2] * 4, BINS))
        shape = list(rows.shape)
        self.operator("RESHAPE", [boxes.number, self.ints(shape)], [rows.number], "ReshapeOptions", newShape=shape)
        self.softmax(rows)
        self.silu(self.filtered(self.block(x, 16), 8))


def draw_yolo(path: Path, dtype: str = "int8", size: int = 64) -> Path:
    """Writes the detector for pictures of a size that is a multiple of 32."""
    d = YoloDrawer(np.random.default_rng(8))
    d.dtype = dtype
    x = d.block(d.input((1, size, size, 3), dtype, SCALES[dtype], 0), 8, 3, 2)
    p3 = d.c2f(d.block(d.c2f(d.block(x, 16, 3, 2), 16, True), 16, 3, 2), 16, True)
    p4 = d.c2f(d.block(p3, 32, 3, 2), 32, True)
    p5 = d.sppf(d.c2f(d.block(p4, 64, 3, 2), 64, True))
    up4 = d.c2f(d.joined([d.doubled(p5), p4]), 32, False)
    up3 = d.c2f(d.joined([d.doubled(up4), p3]), 16, False)
    down4 = d.c2f(d.joined([d.block(up3, 16, 3, 2), up4]), 32, False)
    down5 = d.c2f(d.joined([d.block(down4, 32, 3, 2), p5]), 64, False)
    for level in (up3, down4, down5):
        d.head(level)
    return d.write(path)
