"""Biases measured behind the function that follows, layer by layer in the order of execution.

What rounding does to the mean of a layer's output is only part of what it does behind a SiLU: a convex function lifts
the mean of whatever is noisy, a maximum takes the noise that is largest, and every layer hands both on. So the rounded
model is executed in pieces, each of which ends with a convolution before such a function, or with one whose result is
the model's. There the mean of each channel behind the function is brought back to that of the float model, before the
next piece is executed on what this one gives.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

import numpy as np

from anynpu.artifact import PassEffect
from anynpu.graph import passes
from anynpu.graph.agreement import spread
from anynpu.graph.passes import Pass
from anynpu.quantize.bias import channel_mean
from anynpu.quantize.calibration import Dataset
from anynpu.quantize.followers import Pointwise
from anynpu.quantize.functions import followers, functions
from anynpu.quantize.net import Change, Floats, Form, Net
from anynpu.quantize.ranges import Range
from anynpu.tensors import Array

SAMPLES = 48
"""As many as memory allows: all that is alive between two pieces is kept for each of them. On 16 pictures the means of
a detector were too uncertain to gain anything."""
FEWEST = 32
_NUDGE = 0.01
_FLATTEST = 0.1
"""The slope behind which a bias hardly moves a mean: it is not asked to make up for more."""
_FARTHEST = 0.5
"""How far a bias may move, in standard deviations of what it is added to."""
F = TypeVar("F", bound=Form)


@dataclass(frozen=True)
class Place:
    """A convolution whose bias is measured, by its result, and the result of the function behind it."""

    result: str
    bias: str
    behind: str
    function: Pointwise | None
    axis: int
    """That of the channels."""

    def of(self, values: Array) -> Array:
        """Returns what the function makes of values."""
        return values if self.function is None else np.asarray(self.function.function(values), values.dtype)


class Pieces(Protocol):
    """A quantised model that is executed on some samples from one place to the next."""

    places: Sequence[Place]
    """In the order in which they are executed."""

    def mean(self, place: Place) -> Floats:
        """Returns the mean of each channel behind the function of a place."""

    def shift(self, place: Place, by: Array) -> None:
        """Adds to the bias of the place where the mean was just taken."""


Open = Callable[[Sequence[Place], Sequence[dict[str, Array]]], Pieces]


def places(net: Net, unrounded: Collection[str]) -> list[Place]:
    """Returns the convolutions before functions of one tensor that is rounded at both ends, and the model's last."""
    # A rectifier is part of its layer, and nothing is rounded before it.
    ends = {source: end for source, (_, end) in functions(net).items() if net.makers[end].kind != "rectifier"}
    behind = followers(net)
    found = []
    for operation in net.operations:
        layer, result = net.owned_layer(operation), operation.result
        if layer is None or layer.window is None or not layer.bias or result in unrounded:
            continue
        function = behind.get(result)
        if isinstance(function, Pointwise) and result in ends and ends[result] not in unrounded:
            found.append(Place(result, layer.bias, ends[result], function, layer.channel_axis))
        elif result in net.outputs and not net.readers.get(result):
            found.append(Place(result, layer.bias, result, None, layer.channel_axis))
    return found if any(place.function for place in found) else []


def measured(
    form: F, exact: F, execute: Open, data: Dataset, ranges: Mapping[str, Range], unrounded: Collection[str]
) -> tuple[F, tuple[PassEffect, ...]]:
    """Returns the float model with the biases that its quantised form needs to keep the means that `exact`, the model
    as it was before anything made up for rounding, has behind its functions, within `ranges`; and what that changed."""
    does = "biases keep the means behind functions, measured layer by layer"

    def measure(given: F) -> tuple[F, int]:
        return biases_measured(given, exact, execute, data, ranges, unrounded)

    return passes.run((Pass("measured-biases", does, measure, keeps_results=False),), form)


def biases_measured(
    form: F, exact: F, execute: Open, data: Dataset, ranges: Mapping[str, Range], unrounded: Collection[str]
) -> tuple[F, int]:
    """Returns the float model with measured biases, and how many there are."""
    net = form.net()
    chosen = places(net, unrounded)
    if not chosen or data.count < FEWEST:
        return form, 0
    samples = [data.sample(at) for at in spread(data.count, min(data.count, SAMPLES))]
    targets = _targets(exact, chosen, samples, ranges)
    change, pieces = Change(net), execute(chosen, samples)
    for place in pieces.places:
        shift = targets[place.result].shift(pieces.mean(place))
        change.stored[place.bias] = np.asarray(change.values(place.bias) + shift, np.float32)
        pieces.shift(place, shift)
    return form.changed(change), len(change.stored)


@dataclass
class _Target:
    """What the float model gives behind a function: the mean of each channel, how much a bias moves it, and how far
    what the bias is added to spreads."""

    mean: Floats
    slope: Floats
    spread: Floats

    def shift(self, mean: Floats) -> Array:
        """Returns what brings the means of channels back to those of the float model."""
        steep = np.where(np.abs(self.slope) < _FLATTEST, np.copysign(_FLATTEST, self.slope), self.slope)
        farthest = _FARTHEST * self.spread
        return np.clip((self.mean - mean) / steep, -farthest, farthest).astype(np.float32)


def _targets(
    form: Form, chosen: Sequence[Place], samples: Sequence[dict[str, Array]], ranges: Mapping[str, Range]
) -> dict[str, _Target]:
    """Returns what the float model gives at each place. What a range clips is not an error of the mean: a bias that
    gave it back would move all samples for the sake of the few that are too loud."""
    run = form.run([place.result for place in chosen])
    rows: dict[str, list[tuple[Floats, Floats, Floats]]] = {place.result: [] for place in chosen}
    for sample in samples:
        computed = run(sample)
        for place in chosen:
            values, limits = computed[place.result], ranges[place.behind]
            rise = place.of(values + _NUDGE) - place.of(values - _NUDGE)
            kept = np.clip(place.of(values), min(limits.min, 0.0), max(limits.max, 0.0))
            means = channel_mean(kept, place.axis), channel_mean(rise, place.axis) / (2 * _NUDGE)
            others = tuple(axis for axis in range(values.ndim) if axis != place.axis % values.ndim)
            rows[place.result].append((*means, values.std(axis=others).astype(np.float64)))
    return {name: _Target(*np.mean(each, axis=0)) for name, each in rows.items()}
