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
from anynpu.quantize.ranges import Range, planned_form
from anynpu.quantize.weights import largest_integer, planned_scales
from anynpu.tensors import Array, Quantization

if TYPE_CHECKING:
    from anynpu.quantize.plan import QuantPlan
    from anynpu.quantize.sketch import Sketch

Floats = NDArray[np.float64]
_PIECE = 1 << 16
"""How many values are worked on at a time."""


class ChannelMeans:
    """The mean of each channel of some tensors over all samples, as they are and as integers keep them."""

    def __init__(self, sketch: Sketch, ranges: Mapping[str, Range], plan: QuantPlan) -> None:
        self._sketch, self._ranges, self._plan = sketch, ranges, plan

    def exact(self, name: str) -> Floats:
        return self._sketch.mean(name, lambda rows: rows)

    def rounded(self, name: str) -> Floats:
        dtype = self._plan.stored_type(name)
        if dtype == "float32":
            return self.exact(name)
        form = planned_form(self._ranges[name], dtype, self._plan)
        return self._sketch.mean(name, partial(kept, form=form, dtype=dtype))


def steps(values: Array, form: Quantization, dtype: str) -> Array:
    """Returns the integers that stand for values, in the values' own precision: `Quantization` takes ten times as
    long."""
    limits, zero = np.iinfo(dtype), form.zero_point[0]
    stored: Array = values / values.dtype.type(form.scale[0])
    np.rint(stored, out=stored)
    stored += stored.dtype.type(zero)
    np.clip(stored, limits.min, limits.max, out=stored)
    return stored


def kept(values: Array, form: Quantization, dtype: str) -> Array:
    """Returns what integers keep of the values, in their own precision."""
    stored = steps(values, form, dtype)
    stored -= stored.dtype.type(form.zero_point[0])
    stored *= stored.dtype.type(form.scale[0])
    return stored


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


def rounding_error(weights: Array, channel_axis: int | None, bits: int, plan: QuantPlan) -> Floats:
    """Returns weights minus what symmetric integers keep of them; one scale per slice of `channel_axis`, or for all."""
    values = np.asarray(weights, np.float64)
    scale = planned_scales(values, channel_axis, bits, plan)
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
