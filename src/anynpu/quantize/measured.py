"""Biases measured behind the function that follows, layer by layer in the order of execution.

What rounding does to the mean of a layer's output is only part of what it does behind a SiLU: a convex function lifts
the mean of whatever is noisy, a maximum takes the noise that is largest, and every layer hands both on. So the rounded
model is executed in pieces, each of which ends with a convolution before such a function, or with one whose result is
the model's. There the mean of each channel behind the function is brought back to that of the float model, before the
next piece is executed on what this one gives.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol, TypeVar

import numpy as np

from anynpu.artifact import PassEffect
from anynpu.graph import passes
from anynpu.graph.agreement import spread
from anynpu.graph.passes import Pass
from anynpu.quantize.calibration import Dataset
from anynpu.quantize.followers import Pointwise
from anynpu.quantize.functions import followers, functions
from anynpu.quantize.net import Change, Floats, Form, Net
from anynpu.quantize.ranges import Range
from anynpu.quantize.sketch import Sketch
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


Open = Callable[[Sequence[Place], Iterable[dict[str, Array]]], Pieces]


def places(net: Net, unrounded: Collection[str]) -> list[Place]:
    """Returns the convolutions before functions of one tensor that is rounded at both ends, and the model's last."""
    # A rectifier is part of its layer, and nothing is rounded before it.
    ends = {source: end for source, (_, end) in functions(net).items() if net.makers[end].kind != "rectifier"}
    behind = followers(net)
    measurable = []
    for operation in net.operations:
        layer, result = net.owned_layer(operation), operation.result
        if layer is None or layer.window is None or not layer.bias or result in unrounded:
            continue
        function = behind.get(result)
        known = isinstance(function, Pointwise) and result in ends and ends[result] not in unrounded
        if known and isinstance(function, Pointwise) and _bends(function):
            measurable.append(Place(result, layer.bias, ends[result], function, layer.channel_axis))
        elif result in net.outputs and not net.readers.get(result):
            measurable.append(Place(result, layer.bias, result, None, layer.channel_axis))
    return measurable if any(place.function for place in measurable) else []


def _bends(function: Pointwise) -> bool:
    """Tells whether a function is more than a sum and a product with numbers, behind a rectifier or none: these hand on
    what a layer gives as it is."""
    left, right = (np.asarray(function.function(np.linspace(*ends, 33))) for ends in ((-8.0, 0.0), (0.0, 8.0)))
    step, least = np.diff(right), 1e-5 * float(np.abs(right).max())
    straight = np.allclose(step, step[0], 0.0, least)
    return not straight or not any(np.allclose(np.diff(left), slope, 0.0, least) for slope in (0.0, step[0]))


@dataclass(frozen=True)
class Target:
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


class Targets:
    """What the float model gives at each place.

    What a range clips is not an error of the mean: a bias that gave it back would move all samples for the sake of the
    few that are too loud. That, slopes and spreads are those of some rows: they say how far to go.
    """

    def __init__(self, sketch: Sketch, chosen: Sequence[Place], ranges: Mapping[str, Range]) -> None:
        self._sketch, self._ranges = sketch, {place.behind: ranges[place.behind] for place in chosen}

    def of(self, place: Place) -> Target:
        """Returns what a place had on average."""
        limits, mean = self._ranges[place.behind], partial(self._sketch.mean, measured=True)
        low, high = min(limits.min, 0.0), max(limits.max, 0.0)
        lost = mean(place.behind, lambda rows: rows - np.clip(rows, low, high))
        slope = mean(place.result, lambda rows: (place.of(rows + _NUDGE) - place.of(rows - _NUDGE)) / (2 * _NUDGE))
        middle = mean(place.result, lambda rows: rows)
        spread = np.sqrt(mean(place.result, lambda rows: np.square(rows - middle.astype(rows.dtype))))
        return Target(self._sketch.average(place.behind) - lost, slope, spread)


def sampled(data: Dataset) -> list[int]:
    """Returns the samples that biases are measured on."""
    return spread(data.count, min(data.count, SAMPLES))


def measured(
    form: F, targets: Targets, execute: Open, data: Dataset, unrounded: Collection[str]
) -> tuple[F, tuple[PassEffect, ...]]:
    """Returns the float model with the biases that its quantised form needs to keep the means that the model had behind
    its functions before anything made up for rounding; and what that changed."""
    does = "biases keep the means behind functions, measured layer by layer"

    def measure(graph: F) -> tuple[F, int]:
        return biases_measured(graph, targets, execute, data, unrounded)

    return passes.run((Pass("measured-biases", does, measure, keeps_results=False),), form)


def biases_measured(
    form: F, targets: Targets, execute: Open, data: Dataset, unrounded: Collection[str]
) -> tuple[F, int]:
    """Returns the float model with measured biases, and how many there are."""
    net = form.net()
    chosen = measurable(net, unrounded, data)
    if not chosen:
        return form, 0
    change, pieces = Change(net), execute(chosen, (data.sample(at) for at in sampled(data)))
    for place in pieces.places:
        shift = targets.of(place).shift(pieces.mean(place))
        change.stored[place.bias] = np.asarray(change.values(place.bias) + shift, np.float32)
        pieces.shift(place, shift)
    return form.changed(change), len(change.stored)


def measurable(net: Net, unrounded: Collection[str], data: Dataset) -> list[Place]:
    """Returns the places whose biases are measured on some samples: none where these are too few."""
    return places(net, unrounded) if data.count >= FEWEST else []
