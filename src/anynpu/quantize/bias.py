"""Bias correction: rounded weights and inputs shift the mean of a layer's output; its bias takes the shift back.

The mean of an output channel is the sum of its weights, each times the mean of the input it meets. What it loses is the
difference between that sum and the same sum over rounded weights and rounded inputs. The means come from the float
model over the calibration data.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from anynpu.quantize.ranges import Range, quantization_for
from anynpu.quantize.weights import largest_integer, symmetric_scales
from anynpu.tensors import Array, Quantization

if TYPE_CHECKING:
    from anynpu.quantize.calibration import Dataset
    from anynpu.quantize.plan import QuantPlan

Floats = NDArray[np.float64]


class ChannelMeans:
    """Collects the mean of each channel of some tensors over all samples, as they are and as integers keep them."""

    def __init__(self, axes: Mapping[str, int], ranges: Mapping[str, Range], plan: QuantPlan) -> None:
        self._axes = axes
        self._types = {name: plan.stored_type(name) for name in axes}
        self._forms = {
            name: quantization_for(ranges[name], dtype, dtype == "int16")
            for name, dtype in self._types.items()
            if dtype != "float32"
        }
        self._exact: dict[str, Floats] = {}
        self._rounded: dict[str, Floats] = {}
        self._count = 0

    def observe(self, tensors: Mapping[str, Array]) -> None:
        """Adds one sample."""
        self._count += 1
        for name, axis in self._axes.items():
            values, form = tensors[name], self._forms.get(name)
            rounded = values if form is None else kept(values, form, self._types[name])
            self._exact[name] = self._exact.get(name, 0.0) + channel_mean(values, axis)
            self._rounded[name] = self._rounded.get(name, 0.0) + channel_mean(rounded, axis)

    def exact(self, name: str) -> Floats:
        return self._exact[name] / self._count

    def rounded(self, name: str) -> Floats:
        return self._rounded[name] / self._count


def kept(values: Array, form: Quantization, dtype: str) -> Array:
    """Returns what integers keep of the values, in their own precision: `Quantization` takes ten times as long."""
    limits, zero = np.iinfo(dtype), form.zero_point[0]
    scale = values.dtype.type(form.scale[0])
    steps: Array = np.rint(values / scale)
    np.clip(steps, limits.min - zero, limits.max - zero, out=steps)
    steps *= scale
    return steps


def channel_mean(values: Array, axis: int) -> Floats:
    others = tuple(each for each in range(values.ndim) if each != axis % values.ndim)
    return np.asarray(values.mean(axis=others, dtype=np.float64))


def channel_means(
    run: Callable[[dict[str, Array]], Mapping[str, Array]],
    data: Dataset,
    axes: Mapping[str, int],
    ranges: Mapping[str, Range],
    plan: QuantPlan,
) -> ChannelMeans:
    """Returns the channel means of the tensors in `axes` over the data."""
    means, run = ChannelMeans(axes, ranges, plan), data.counted(run) if axes else run
    for index in range(data.count if axes else 0):
        means.observe(run(data.sample(index)))
    return means


def rounding_error(weights: Array, channel_axis: int | None, bits: int = 8) -> Floats:
    """Returns weights minus what symmetric integers keep of them; one scale per slice of `channel_axis`, or for all."""
    values = np.asarray(weights, np.float64)
    scale = symmetric_scales(values, channel_axis, bits)
    if channel_axis is not None:
        scale = scale.reshape([-1 if a == channel_axis else 1 for a in range(values.ndim)])
    most = largest_integer(bits)
    return np.asarray(values - np.clip(np.rint(values / scale), -most, most) * scale)


def lost_mean(exact: Floats, rounded: Floats, means: ChannelMeans, name: str) -> Floats:
    """Returns what each output channel loses when weights and the input `name` are rounded; see `output_mean`."""
    return output_mean(exact, means.exact(name)) - output_mean(rounded, means.rounded(name))


def output_mean(weights: Floats, mean: Floats) -> Floats:
    """Returns the mean of each output channel, without bias, for an input of the given channel means.

    `weights` are (outputs, positions, inputs of the output's group).
    """
    outputs, _, width = weights.shape
    if len(mean) < width:
        mean = np.tile(mean, width // len(mean))  # a dense layer that flattens: each element has its channel's mean
    groups = len(mean) // width
    grouped = weights.sum(axis=1).reshape(groups, outputs // groups, width)
    return np.asarray(np.einsum("goi,gi->go", grouped, mean.reshape(groups, -1)).reshape(outputs))
