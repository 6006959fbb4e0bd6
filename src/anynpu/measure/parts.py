"""The elements of an output over all samples, and the parts that it has along its axes."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from anynpu.measure.decibels import ratios_db
from anynpu.tensors import Array

FLOAT_NOISE = 1e-6
"""An element that varies by less, relative to its own size, is constant: sums in another order vary as much."""
FEW_ELEMENTS = 16
"""Of at most this many elements each has a meaning of its own: a class, a coordinate, a sensor."""
MAX_PARTS = 4096
BLOCK = 4096
OFFSET = 0.1
FAR = 10.0
"""Values that keep this many times their variation away from zero vary around something large."""
UNFIT = 1e-4
STANDING = 1e-2
"""Outputs of many elements that move by less, relative to the largest, are those of untrained networks on noise."""
GAP = 30.0
"""Parts of one kind vary alike or shade off; a step this large between them says that they are of two kinds."""
LEVELS = 256
MARGIN_STEPS = 4
"""What moves by less than so many of 256 steps is lost to no one."""
RECTIFIED = 0.05
"""The share of zeros among the elements of a rectified output that move."""
NAMED = 3


class Elements:
    """Figures of every element of an output over all samples."""

    def __init__(self, reference: Array, candidate: Array) -> None:
        self.reference, self.candidate = reference, candidate
        self.samples, self.shape = len(reference), reference.shape[1:]
        rows = reference.reshape(self.samples, -1), candidate.reshape(self.samples, -1)
        count = rows[0].shape[1]
        lowest, highest = reference.min(axis=0), reference.max(axis=0)
        squares, variance, mean, zeros = (np.empty(count) for _ in range(4))
        still, self.sample_error = np.empty(count, bool), np.zeros(self.samples)
        # Some elements at a time stay in the processor's cache.
        for cut in (slice(start, start + BLOCK) for start in range(0, count, BLOCK)):
            expected, got = (values[:, cut] for values in rows)
            error = np.subtract(got, expected, dtype=np.float64)
            np.multiply(error, error, out=error)
            squares[cut], still[cut] = error.mean(axis=0), (got == got[:1]).all(axis=0)
            zeros[cut] = (expected == 0).mean(axis=0)
            self.sample_error += error.sum(axis=1)
            mean[cut] = expected.mean(axis=0, dtype=np.float64)
            deviation = np.subtract(expected, mean[cut], out=error)
            variance[cut] = np.multiply(deviation, deviation, out=deviation).sum(axis=0) / (self.samples - 1)
        self.error, self.variance, self.still, middle = (
            figures.reshape(self.shape) for figures in (squares, variance, still, mean)
        )
        self.reach = np.maximum(highest - middle, middle - lowest)
        low, high = float(lowest.min()), float(highest.max())
        size = np.maximum(highest, -lowest)
        self.size = float(size.max())
        self.varying = np.sqrt(self.variance) > np.maximum(FLOAT_NOISE * size, 0.1 * FLOAT_NOISE * self.size)
        self.probabilities = low >= -FLOAT_NOISE and high <= 1 + FLOAT_NOISE
        self.few = size.size <= FEW_ELEMENTS
        std = float(np.sqrt(self.variance[self.varying].mean())) if self.varying.any() else 0.0
        far = not self.probabilities and max(low, -high) > FAR * std
        # Few elements, or many around large values: there a step larger than the variation leaves nothing of it.
        self.by_step = self.few or far or high - low < OFFSET * self.size
        moved = 2 * float(self.reach.max(initial=0))
        self.standing = not self.by_step and UNFIT * self.size < moved < STANDING * self.size
        # What a scale for 8 bits must span: quantisers keep zero inside.
        self.step = (max(high, 0.0) - min(low, 0.0)) / (LEVELS - 1)
        # Scores may be zeros next to boxes that never are.
        moving = self.reach.ravel() > MARGIN_STEPS * self.step
        self.rectified = low == 0.0 and moving.any() and float(zeros[moving].mean()) > RECTIFIED


@dataclass(frozen=True)
class Parts:
    """The parts of an output along some of its axes: one figure a part; only those that vary in the float model."""

    axes: tuple[int, ...]
    shape: tuple[int, ...]
    index: Array
    std: Array
    sqnr_db: Array
    error: Array
    reach: Array
    still: Array

    @classmethod
    def of(cls, elements: Elements, axes: tuple[int, ...]) -> Parts:
        rest = tuple(axis for axis in range(len(elements.shape)) if axis not in axes)
        varying = elements.varying
        count = varying.sum(axis=rest).ravel()
        chosen = np.flatnonzero(count)
        variance = np.where(varying, elements.variance, 0).sum(axis=rest).ravel()[chosen]
        error = np.where(varying, elements.error, 0).sum(axis=rest).ravel()[chosen]
        return cls(
            axes,
            tuple(elements.shape[axis] for axis in axes),
            chosen,
            np.sqrt(variance / count[chosen]),
            ratios_db(variance, error),
            np.sqrt(error / count[chosen]),
            elements.reach.max(axis=rest, initial=0).ravel()[chosen],
            (elements.still | ~varying).all(axis=rest).ravel()[chosen],
        )

    def values(self, elements: Elements, part: int) -> tuple[Array, Array]:
        """Returns what the float model and the build give for one part."""
        where = np.unravel_index(int(self.index[part]), self.shape)
        cut: list[int | slice] = [slice(None)] * (len(elements.shape) + 1)
        for axis, place in zip(self.axes, where, strict=True):
            cut[axis + 1] = int(place)
        return elements.reference[tuple(cut)], elements.candidate[tuple(cut)]

    def below_gap(self) -> Array:
        """Returns which parts vary so much less than all others that they are of another kind."""
        order = np.sort(self.std)[::-1]
        steps = order[:-1] / order[1:]
        if not steps.size or steps.max() < GAP:
            return np.zeros(len(self.std), bool)
        return np.asarray(self.std <= order[int(steps.argmax()) + 1])

    def named(self, parts: Array, elements: Elements) -> str:
        """Returns the places of some parts as people say them; axes count the batch."""
        places = self.index[parts]
        if len(self.axes) > 1:
            texts = [str(list(map(int, np.unravel_index(int(place), self.shape)))) for place in places[:NAMED]]
            more = f" and {len(places) - NAMED} more" if len(places) > NAMED else ""
            axes = ", ".join(str(axis + 1) for axis in self.axes)
            return f"part{'s' * (len(places) > 1)} {', '.join(texts)}{more} (axes {axes})"
        runs = np.split(places, np.flatnonzero(np.diff(places) != 1)[: NAMED + 1] + 1)
        texts = [str(run[0]) if len(run) == 1 else f"{run[0]}..{run[-1]}" for run in runs]
        listed = ", ".join(texts[:NAMED]) + (" and more" if len(texts) > NAMED else "")
        many = "s" * (len(places) > 1)
        if sum(size > 1 for size in elements.shape) == 1:
            return f"element{many} {listed}"
        return f"row{many} {listed} of axis {self.axes[0] + 1}"


def families_of(elements: Elements) -> Iterator[Parts]:
    """Yields the output cut along each axis and each choice of axes, the fewest parts first."""
    long = [axis for axis, size in enumerate(elements.shape) if size > 1]
    choices = [axes for count in range(1, len(long) + 1) for axes in itertools.combinations(long, count)]
    sizes = {axes: int(np.prod([elements.shape[axis] for axis in axes])) for axes in choices}
    for axes in sorted(choices, key=lambda axes: (len(axes), sizes[axes])):
        if sizes[axes] <= MAX_PARTS or len(long) == 1:
            yield Parts.of(elements, axes)
