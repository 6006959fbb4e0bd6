"""Bias correction: rounded weights shift the mean of a layer's output; its bias takes the expected shift back.

The shift of an output channel is the sum of the rounding errors of its weights, each times the mean of the input it
meets. The means come from the float model over the calibration data.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from anynpu.tensors import Array

Floats = NDArray[np.float64]


class ChannelMeans:
    """Collects the mean of each channel of some tensors over all samples."""

    def __init__(self, axes: dict[str, int]) -> None:
        self._axes = axes
        self._sums: dict[str, Floats] = {}
        self._count = 0

    def observe(self, tensors: dict[str, Array]) -> None:
        """Adds one sample."""
        self._count += 1
        for name, axis in self._axes.items():
            values = np.moveaxis(np.asarray(tensors[name], np.float64), axis, -1)
            mean = values.reshape(-1, values.shape[-1]).mean(axis=0)
            self._sums[name] = self._sums.get(name, np.zeros_like(mean)) + mean

    def mean(self, name: str) -> Floats:
        return self._sums[name] / self._count


def rounding_error(weights: Array, channel_axis: int | None) -> Floats:
    """Returns weights minus what symmetric int8 stores of them, one scale per slice along `channel_axis` or for all."""
    values = np.asarray(weights, np.float64)
    others = None if channel_axis is None else tuple(a for a in range(values.ndim) if a != channel_axis)
    top = np.max(np.abs(values), axis=others, keepdims=True)
    scale = np.where(top > 0, top, 1.0) / 127.0
    return np.asarray(values - np.rint(values / scale) * scale)


def expected_shift(error: Floats, mean: Floats, depthwise: bool = False) -> Floats:
    """Returns what the rounding errors take from the mean of each output channel.

    `error` is (outputs, positions, inputs of the output's group), or (outputs, positions) of a depthwise layer.
    """
    outputs = error.shape[0]
    if depthwise:
        return np.asarray(error.sum(axis=1) * np.repeat(mean, outputs // len(mean)))
    groups = len(mean) // error.shape[2]
    grouped = error.sum(axis=1).reshape(groups, outputs // groups, error.shape[2])
    return np.asarray(np.einsum("goi,gi->go", grouped, mean.reshape(groups, -1)).reshape(outputs))
