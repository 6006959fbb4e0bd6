"""Weights rounded against the inputs they meet (GPTQ): what one weight loses, those that are still to be rounded take.

Rounding to the nearest integer is best for each weight alone. What a layer gives is best where the error of the sums is
smallest: inputs that are loud together let the error of one weight be made good by another. Columns are rounded in the
order of the loudness of their inputs; the second moments of the inputs say how much of an error the others can take.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from anynpu.quantize.weights import largest_integer
from anynpu.tensors import Array

Floats = NDArray[np.float64]
FITTING_SAMPLES = 32
"""The second moments of inputs show in a few samples, and in a few hundred places of each."""
PLACES = 400
# What keeps the moments of inputs that hardly differ from being inverted to noise.
_DAMPING = 0.01
_BLOCK = 64
"""Columns whose losses the later ones take together: the same sums, as one product of matrices."""


@dataclass(frozen=True)
class Window:
    """Where a convolution reads: the sizes along height and width, and how many groups of channels it has."""

    kernel: tuple[int, int]
    strides: tuple[int, int] = (1, 1)
    dilations: tuple[int, int] = (1, 1)
    pads: tuple[int, int, int, int] = (0, 0, 0, 0)
    """Before height and width, then behind them, as ONNX states them."""
    groups: int = 1


@dataclass
class Moments:
    """The second moments of what meets the weights of a layer, for each group of channels."""

    draw: np.random.Generator = field(default_factory=lambda: np.random.default_rng(0))
    sums: Floats | None = None

    def rows(self, inputs: Array) -> None:
        """Adds inputs of a dense layer, the last axis of which meets the weights."""
        self._add(np.asarray(inputs, np.float64).reshape(1, -1, inputs.shape[-1]), 1.0)

    def image(self, inputs: Array, window: Window) -> None:
        """Adds one input (channels, height, width) of a convolution, in some of the places where it reads."""
        (top, left, bottom, right), (high, wide) = window.pads, window.kernel
        padded = np.pad(np.asarray(inputs, np.float64), ((0, 0), (top, bottom), (left, right)))
        reach = [step * (size - 1) + 1 for step, size in zip(window.dilations, window.kernel, strict=True)]
        sizes = [(padded.shape[1 + a] - reach[a]) // window.strides[a] + 1 for a in (0, 1)]
        total = sizes[0] * sizes[1]
        places = self.draw.choice(total, min(total, PLACES), replace=False)
        row, column = places // sizes[1] * window.strides[0], places % sizes[1] * window.strides[1]
        taps = [
            padded[:, row + y * window.dilations[0], column + x * window.dilations[1]]
            for y in range(high)
            for x in range(wide)
        ]
        read = np.stack(taps, -1).reshape(window.groups, -1, len(places), high * wide)
        self._add(read.transpose(0, 2, 1, 3).reshape(window.groups, len(places), -1), total / len(places))

    def _add(self, read: Floats, weight: float) -> None:
        products = weight * np.matmul(read.transpose(0, 2, 1), read)
        self.sums = products if self.sums is None else self.sums + products


def fitted(weights: Array, moments: Moments, scales: Sequence[float] | Array, bits: int) -> Floats:
    """Returns weights (outputs, inputs of the output's group) as multiples of their scales that serve the sums best.

    The largest weight of each output keeps its place at the end of the integers, so that the scale stays what it is.
    """
    values, assigned = np.asarray(weights, np.float64), np.asarray(moments.sums)
    steps = np.broadcast_to(np.asarray(scales, np.float64).reshape(-1), (len(values),))
    count = len(values) // len(assigned)
    groups = [slice(at * count, (at + 1) * count) for at in range(len(assigned))]
    parts = [_fitted(values[part], each, steps[part], bits) for part, each in zip(groups, assigned, strict=True)]
    return np.concatenate(parts)


def _fitted(values: Floats, moments: Floats, steps: Floats, bits: int) -> Floats:
    most, width = largest_integer(bits), values.shape[1]
    order = np.argsort(-np.diag(moments), kind="stable")
    damped = moments + np.eye(width) * max(_DAMPING * float(np.mean(np.diag(moments))), 1e-12)
    spread = np.linalg.cholesky(np.linalg.inv(damped[np.ix_(order, order)])).T
    left, largest = values[:, order], np.abs(values[:, order]).argmax(axis=1)
    result = np.empty_like(left)
    for start in range(0, width, _BLOCK):
        stop = min(start + _BLOCK, width)
        lost = np.empty((len(values), stop - start))
        for column in range(start, stop):
            exact = left[:, column]
            integers = np.clip(np.rint(exact / steps), -most, most)
            kept = largest == column
            integers[kept] = np.sign(values[kept, order[column]]) * np.minimum(
                most, np.rint(np.abs(values[kept, order[column]]) / steps[kept])
            )
            result[:, column] = integers * steps
            lost[:, column - start] = (exact - result[:, column]) / spread[column, column]
            left[:, column + 1 : stop] -= np.outer(lost[:, column - start], spread[column, column + 1 : stop])
        left[:, stop:] -= lost @ spread[start:stop, stop:]
    restored = np.empty_like(result)
    restored[:, order] = result
    return restored
