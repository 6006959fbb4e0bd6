"""Bias correction: rounded weights and inputs shift the mean of a layer's output; its bias takes the shift back.

The mean of an output channel is the sum of its weights, each times the mean of the input it meets. What it loses is the
difference between that sum and the same sum over rounded weights and rounded inputs. The means come from the float
model over the calibration data.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from anynpu.quantize.channels import by_channel, channel_rows
from anynpu.quantize.ranges import Range, quantization_for
from anynpu.quantize.weights import largest_integer, symmetric_scales
from anynpu.tensors import Array, Quantization

if TYPE_CHECKING:
    from anynpu.quantize.plan import QuantPlan

Floats = NDArray[np.float64]
_PIECE = 1 << 16
"""How many values are worked on at a time."""


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
            exact = rounded = channel_mean(values, axis)
            if form is not None:
                rounded = channel_mean(values, axis, partial(kept, form=form, dtype=self._types[name]))
            self._exact[name] = self._exact.get(name, 0.0) + exact
            self._rounded[name] = self._rounded.get(name, 0.0) + rounded

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


def channel_mean(values: Array, axis: int, of: Callable[[Array], Array] | None = None) -> Floats:
    """Returns the mean of each channel, or that of what `of` makes of the values one by one.

    It goes piece by piece, so that what is made of a piece stays in the processor's cache.
    """
    rows = channel_rows(values, axis)
    if of is None:
        return np.asarray(by_channel(np.add, rows) / max(len(rows), 1), np.float64)
    mixed = rows.flags.c_contiguous  # or else channel by channel
    along = 0 if mixed else 1
    parts = np.array_split(rows, min(max(1, rows.size // _PIECE), max(rows.shape[along], 1)), axis=along)
    sums = [by_channel(np.add, of(part)).astype(np.float64) for part in parts]
    return np.asarray((np.sum(sums, axis=0) if mixed else np.concatenate(sums)) / max(len(rows), 1))


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
