"""Ranges chosen by the error behind the function that follows.

A SiLU, GELU, sigmoid or hard swish turns everything below about -6 into nothing, a softmax everything far below the
largest of its row. Integers spent there are lost where values matter. So the samples are counted between fixed limits,
and of the ranges that change no result of the function by more than half a step of its own integers, the one with the
least expected error behind the function is taken.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from anynpu.tensors import Array

Floats = NDArray[np.float64]
# Beyond these a function is taken as it is at the limits of the tensor.
_REACH, _BINS = 16.0, 512
# Ends of a range that are tried.
_ENDS = np.arange(0.0, _REACH + 0.25, 0.25)
# What one sample adds at most: a share of a large map says as much.
_VALUES = 1 << 16
# Softmax gives exp(-12) of its largest share to what lies that far below it: a mask behind that is a mask.
_BELOW = 12.0
# Below minus this a sigmoid leaves next to nothing of its argument.
_SHUT = 6.0


@dataclass(frozen=True)
class Pointwise:
    """A function that is applied to each value; `steps` gives all that is computed on the way to its result."""

    function: Callable[[Array], Array]
    steps: Callable[[Array], Sequence[Array]] = lambda _: ()


@dataclass(frozen=True)
class Rows:
    """A softmax along an axis."""

    axis: int


@dataclass(frozen=True)
class Gate:
    """A product with the sigmoid of the same values, each channel at a factor of its own (`equalize.gate_factors`)."""

    largest_factor: float


@dataclass(frozen=True)
class Moved:
    """A move of the values, or of the largest of them: what the tensor it gives needs is all that is needed."""

    result: str


Follower = Pointwise | Rows | Gate | Moved


@dataclass
class Followed:
    """What the samples say of a tensor that nothing but one function reads."""

    follower: Follower
    counts: NDArray[np.int64] = field(default_factory=lambda: np.zeros(_BINS, np.int64))
    least_top: float = np.inf

    def observe(self, values: Array) -> None:
        """Adds one sample."""
        if isinstance(self.follower, Rows):
            self.least_top = min(self.least_top, float(values.max(axis=self.follower.axis).min()))
            return
        if isinstance(self.follower, Gate | Moved):
            return
        flat = values.reshape(-1)
        flat = flat[:: -(-flat.size // _VALUES)]
        places = np.clip((flat + _REACH) * (_BINS / (2 * _REACH)), 0, _BINS - 1).astype(np.int64)
        self.counts += np.bincount(places, minlength=_BINS)

    def limits(self, low: float, high: float, bits: int) -> tuple[float, float]:
        """Returns the range to store of a tensor that reaches from `low` to `high`."""
        if isinstance(self.follower, Rows):
            return max(low, min(self.least_top - _BELOW, high)), high
        if isinstance(self.follower, Gate):
            return max(low, min(-_SHUT * self.follower.largest_factor, high)), high
        if isinstance(self.follower, Moved):
            return low, high  # the range of another tensor, which whoever has both knows
        function, inner = self.follower.function, self.follower.steps
        steps = 2**bits - 1
        centres = (np.arange(_BINS) + 0.5) * (2 * _REACH / _BINS) - _REACH
        centres[0], centres[-1] = min(low, centres[0]), max(high, centres[-1])
        inside = (centres >= low) & (centres <= high) & (self.counts > 0)
        points = np.concatenate([[low], centres[inside], [high]])
        weights = np.concatenate([[0], self.counts[inside], [0]]).astype(np.float64)
        results, nudge = function(points), 1e-3
        slopes = (function(points + nudge) - function(points - nudge)) / (2 * nudge)
        if not np.isfinite(results).all() or not np.isfinite(slopes).all():
            return low, high
        tolerance = float(results.max() - results.min()) / steps / 2
        lows = np.asarray([low, *(-end for end in _ENDS if -end > low)])
        highs = np.asarray([high, *(end for end in _ENDS if end < high)])
        spans = [(float(each.min()), float(each.max())) for each in inner(points)]

        def harmless(ends: Floats, outside: NDArray[np.intp], ordered: Array) -> Floats:
            """Returns the ends that may clip as many of the ordered results as lie outside of them."""
            last, clipped = np.maximum(outside - 1, 0), function(ends)
            below, above = (each.accumulate(ordered)[last] for each in (np.minimum, np.maximum))
            lost = np.where(outside > 0, np.maximum(above - clipped, clipped - below), 0.0)
            fine: NDArray[np.bool_] = lost <= tolerance
            for value, (least, most) in zip(inner(ends), spans, strict=True):
                # What a comparison turns to the side that was not measured may be anything.
                margin = 1e-6 * (most - least)
                fine &= (least - margin <= value) & (value <= most + margin)
            return ends[fine]

        lows = harmless(lows, np.searchsorted(points, lows, "left"), results)
        highs = harmless(highs, len(points) - np.searchsorted(points, highs, "right"), results[::-1])
        best, least = (low, high), np.inf
        for bottom in lows:
            for top in highs:
                step = (max(top, 0.0) - min(bottom, 0.0)) / steps
                rounding = (slopes * step) ** 2 / 12
                clipped = (results - function(np.clip(points, bottom, top))) ** 2
                error = float(np.where((points < bottom) | (points > top), clipped, rounding) @ weights)
                if error < least * (1 - 1e-9):
                    best, least = (float(bottom), float(top)), error
        return best
