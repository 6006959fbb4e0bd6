"""What a build keeps of the way the float output varies over the samples: of the whole output and of each part of it.

An output of 293 K that moves by half a kelvin has a splendid SQNR when it stands still. Here the mean of every element
over the samples is taken away first, so that only what tells one sample from another counts as signal.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from anynpu.measure.decibels import ratio_db, ratios_db
from anynpu.tensors import Array

ENOUGH_SAMPLES = 5
"""With fewer samples, how an output varies is not known well enough to judge a build by it."""
FLOOR_DB = 6.0
"""Two distinct values for a signal that has many reach at most this."""
BURIED_DB = -10.0
"""Below this the error is so large that nothing of the variation can be seen, whatever it comes from."""
FLOAT_NOISE = 1e-6
"""An element that varies by less, relative to its own size, is constant: sums in another order vary as much."""
FEW_ELEMENTS = 16
"""Of so few elements each has a meaning of its own: a class, a coordinate, a sensor."""
MAX_PARTS = 4096
OFFSET = 0.1
GAP = 30.0
"""Parts of one kind vary alike or shade off; a step this large between them says that they are of two kinds."""
UNEVEN = 100.0
KEPT_DB = 20.0
"""What reaches this in the build (16 bits, a scale a channel) is not lost to a shared scale."""
MARGIN_STEPS = 4
LEVELS = 256
NAMED = 3


@dataclass(frozen=True)
class Variation:
    """How one output varies in the float model over the samples, and what of that a build keeps.

    `sqnr_centred_db` is the ratio of the variance over the samples to the mean squared error, over all elements that
    vary; None where none does, for one sample and for integers. `unresolved` says why a build with a low ratio cannot
    follow at all: it has too few values for that, or its error buries everything. `lost` names the parts of which that
    is true; `uneven` says which parts are too different in range for one scale.
    """

    sqnr_centred_db: float | None = None
    unresolved: str = ""
    lost: tuple[str, ...] = ()
    uneven: str = ""


def compare_variation(name: str, reference: Array, candidate: Array) -> Variation:
    """Returns what `candidate` keeps of the variation of `reference`; the first axis of both counts samples."""
    if reference.ndim == 0 or len(reference) < 2:
        return Variation()
    if reference.dtype.kind in "iub":
        return Variation(lost=_lost_numbers(name, reference, candidate))
    elements = _Elements(reference, candidate)
    varying = elements.varying
    if not varying.any() or is_quiet(reference):
        return Variation()
    centred = ratio_db(float(elements.variance[varying].sum()), float(elements.error[varying].sum()))
    if len(reference) < ENOUGH_SAMPLES:
        return Variation(centred)
    std = float(np.sqrt(elements.variance[varying].mean()))
    unresolved = _unresolved(elements.candidate[:, varying], std, centred, elements.by_step)
    return Variation(centred, unresolved, _lost_parts(name, elements, centred), _uneven_parts(name, elements))


def _unresolved(values: Array, std: float, sqnr_db: float, by_step: bool) -> str:
    """Returns why values cannot follow a float model that varies by `std`, or nothing where they can.

    `by_step` says that steps larger than the variation settle it. Among many elements they need not: each stands at a
    place of its own, and untrained networks, which hardly move on noise, are no worse for it.
    """
    if sqnr_db >= FLOOR_DB:
        return ""
    if (values == values[:1]).all():
        return "it gives one value only" if (values == values.flat[0]).all() else "it gives the same for every sample"
    distinct = np.unique(values)
    step = float(np.diff(distinct).min())
    if by_step and 2 * std < step:
        few = f"{len(distinct)} values" if len(distinct) < 10 else "values"
        return f"it gives {few} in steps of {step:.3g} where the float model varies by {std:.3g} (std)"
    if sqnr_db < BURIED_DB:
        return f"its error is {10 ** (-sqnr_db / 20):.3g} times what varies"
    return ""


def is_quiet(values: Array) -> bool:
    """Returns whether probabilities stay at 0 or 1 throughout: a detector of what is not in the samples."""
    edge = MARGIN_STEPS / LEVELS
    if values.min() < -FLOAT_NOISE or values.max() > 1 + FLOAT_NOISE:
        return False
    return float(np.minimum(values, 1 - values).max()) < edge and float(np.ptp(values, axis=0).max()) < edge


def _lost_numbers(name: str, reference: Array, candidate: Array) -> tuple[str, ...]:
    """Returns the sentence for class numbers or flags of which the build gives only one."""
    if len(reference) < ENOUGH_SAMPLES or not (candidate == candidate.flat[0]).all():
        return ()
    values, counts = np.unique(reference, return_counts=True)
    # A rare class may be missed by chance; what is common may not.
    if counts.max() >= 0.9 * reference.size:
        return ()
    return (
        f"output '{name}' takes {len(values)} values in the float model over {len(reference)} samples and only "
        f"{candidate.flat[0]} in this build",
    )


class _Elements:
    """Figures of every element of an output over all samples."""

    def __init__(self, reference: Array, candidate: Array) -> None:
        self.candidate = candidate
        self.samples, self.shape = len(reference), reference.shape[1:]
        error = np.subtract(candidate, reference, dtype=np.float64)
        self.error = np.einsum("n...,n...->...", error, error) / self.samples
        deviation = np.subtract(reference, reference.mean(axis=0, dtype=np.float64), out=error)
        self.variance = np.einsum("n...,n...->...", deviation, deviation) / (self.samples - 1)
        self.reach = np.maximum(deviation.max(axis=0), -deviation.min(axis=0))
        self.still = candidate.max(axis=0) == candidate.min(axis=0)
        lowest, highest = reference.min(axis=0), reference.max(axis=0)
        low, high = float(lowest.min()), float(highest.max())
        size = np.maximum(highest, -lowest)
        self.size = float(size.max())
        self.varying = np.sqrt(self.variance) > np.maximum(FLOAT_NOISE * size, 0.1 * FLOAT_NOISE * self.size)
        self.probabilities = low >= -FLOAT_NOISE and high <= 1 + FLOAT_NOISE
        self.rectified = low == 0.0 and np.count_nonzero(reference) <= 0.95 * reference.size
        self.few = size.size <= FEW_ELEMENTS
        # Few elements, or many around one large value: there a step larger than the variation leaves nothing of it.
        self.by_step = self.few or high - low < OFFSET * self.size
        # What a scale for 8 bits must span: quantisers keep zero inside.
        self.step = (max(high, 0.0) - min(low, 0.0)) / (LEVELS - 1)


@dataclass(frozen=True)
class _Parts:
    """The parts of an output along some of its axes: one figure a part; only those that vary in the float model."""

    axes: tuple[int, ...]
    shape: tuple[int, ...]
    index: Array
    std: Array
    sqnr_db: Array
    reach: Array
    still: Array

    @classmethod
    def of(cls, elements: _Elements, axes: tuple[int, ...]) -> _Parts:
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
            elements.reach.max(axis=rest, initial=0).ravel()[chosen],
            (elements.still | ~varying).all(axis=rest).ravel()[chosen],
        )

    def values(self, elements: _Elements, part: int) -> Array:
        """Returns what the build gives for one part."""
        where = np.unravel_index(int(self.index[part]), self.shape)
        cut: list[int | slice] = [slice(None)] * (len(elements.shape) + 1)
        for axis, place in zip(self.axes, where, strict=True):
            cut[axis + 1] = int(place)
        return elements.candidate[tuple(cut)]

    def below_gap(self) -> Array:
        """Returns which parts vary so much less than all others that they are of another kind."""
        order = np.sort(self.std)[::-1]
        steps = order[:-1] / order[1:]
        if not steps.size or steps.max() < GAP:
            return np.zeros(len(self.std), bool)
        return np.asarray(self.std <= order[int(steps.argmax()) + 1])

    def named(self, parts: Sequence[int], elements: _Elements) -> str:
        """Returns the places of some parts as people say them; axes count the batch."""
        places = [int(self.index[part]) for part in parts]
        if len(self.axes) > 1:
            texts = [str(list(map(int, np.unravel_index(place, self.shape)))) for place in places[:NAMED]]
            more = f" and {len(places) - NAMED} more" if len(places) > NAMED else ""
            axes = ", ".join(str(axis + 1) for axis in self.axes)
            return f"part{'s' * (len(places) > 1)} {', '.join(texts)}{more} (axes {axes})"
        runs = [list(run) for _, run in itertools.groupby(enumerate(places), lambda pair: pair[1] - pair[0])]
        texts = [str(r[0][1]) if len(r) == 1 else f"{r[0][1]}..{r[-1][1]}" for r in runs]
        listed = ", ".join(texts[:NAMED]) + (" and more" if len(texts) > NAMED else "")
        many = "s" * (len(places) > 1)
        if sum(size > 1 for size in elements.shape) == 1:
            return f"element{many} {listed}"
        return f"row{many} {listed} of axis {self.axes[0] + 1}"


def _families(elements: _Elements) -> Iterator[_Parts]:
    """Yields the output cut along each axis and each choice of axes, the fewest parts first."""
    long = [axis for axis, size in enumerate(elements.shape) if size > 1]
    choices = [axes for count in range(1, len(long) + 1) for axes in itertools.combinations(long, count)]
    sizes = {axes: int(np.prod([elements.shape[axis] for axis in axes])) for axes in choices}
    for axes in sorted(choices, key=lambda axes: (len(axes), sizes[axes])):
        if sizes[axes] <= MAX_PARTS:
            yield _Parts.of(elements, axes)


def _lost_parts(name: str, elements: _Elements, centred_db: float) -> tuple[str, ...]:
    """Returns sentences on the parts that the build loses, along the first axes that show any."""
    for parts in _families(elements):
        lost = _lost(parts, elements, centred_db)
        if lost:
            return tuple(_sentences(name, parts, lost, elements))
    return ()


def _lost(parts: _Parts, elements: _Elements, centred_db: float) -> list[int]:
    """Returns the parts whose variation is lost although it means something.

    A part is lost where the build stands still, has steps larger than the variation, or buries it in errors. Of few
    elements every one counts, unless the output as a whole is no better. Of many, parts count that vary far less than
    all others (boxes and scores in one output), and those that stand still although they vary by more than the build
    is wrong elsewhere. Pixels and anchors of which some hardly ever change shade off instead, and lose nothing that is
    seen.
    """
    harmless = np.zeros(len(parts.std), bool)
    if elements.probabilities:
        harmless = parts.reach < MARGIN_STEPS / LEVELS
    elif elements.rectified and np.prod(parts.shape) > FEW_ELEMENTS:
        harmless = parts.reach < MARGIN_STEPS * elements.step
    low = np.flatnonzero((parts.sqnr_db < FLOOR_DB) & ~harmless).tolist()
    weak = [part for part in low if _is_lost(parts, part, elements)]
    if not weak or (elements.few and centred_db >= FLOOR_DB):
        return weak
    apart = parts.below_gap()
    usual_error = float(np.sqrt(np.mean(elements.error[elements.varying])))
    large = parts.still & (parts.std > MARGIN_STEPS * usual_error)
    return [part for part in weak if apart[part] or large[part]]


def _is_lost(parts: _Parts, part: int, elements: _Elements) -> bool:
    if parts.still[part]:
        return True
    values, std, sqnr_db = parts.values(elements, part), float(parts.std[part]), float(parts.sqnr_db[part])
    return bool(_unresolved(values, std, sqnr_db, by_step=True))


def _sentences(name: str, parts: _Parts, lost: list[int], elements: _Elements) -> Iterator[str]:
    """Yields one sentence for the parts that stand still and one for those that are wrong in another way."""
    for still, said in ((True, ("is constant", "are constant")), (False, ("does not follow", "do not follow"))):
        chosen = [part for part in lost if parts.still[part] == still]
        if chosen:
            std = f"std {parts.std[chosen].max():.3g}" + (" at most" if len(chosen) > 1 else "")
            verb, rest = ("varies", said[0]) if len(chosen) == 1 else ("vary", said[1])
            yield (
                f"{parts.named(chosen, elements)} of output '{name}' {verb} in the float model ({std} over "
                f"{elements.samples} samples) and {rest} in this build"
            )


def _uneven_parts(name: str, elements: _Elements) -> str:
    """Returns the sentence on parts of one output that are too different in range for one scale, or nothing."""
    if elements.probabilities or elements.rectified:
        return ""
    for parts in _families(elements):
        if len(parts.axes) > 1 or len(parts.std) < 2:
            continue
        small = (parts.sqnr_db < KEPT_DB) & ((LEVELS - 1) * elements.step > UNEVEN * 2 * parts.reach)
        small &= parts.reach.max() > UNEVEN / 10 * parts.reach
        if not elements.few:
            small &= parts.below_gap()
        if small.any() and not small.all():
            chosen = np.flatnonzero(small).tolist()
            named, within = parts.named(chosen, elements), 2 * float(parts.reach[chosen].max())
            return (
                f"the values of output '{name}' reach {elements.size:.3g}, those of {named} vary within {within:.3g}: "
                "with one scale for all, integers keep little of the smaller; make them outputs of their own "
                "(a detector: --task)"
            )
    return ""
