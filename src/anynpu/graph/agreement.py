"""Whether two ways of computing the same outputs agree, judged over many samples and by how the outputs vary.

An element agrees within a thousandth of how much it varies over the samples, plus the rounding of float32 at the
output's own magnitude: a softmax tail of 1e-30 or a 1e-12 in the place of a zero does not count, and 0.1 on top of
1000 is one. Where a network magnifies rounding, it says so itself: run on inputs moved by their last bits, its own
answers move as much.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from anynpu.errors import IntegrityError
from anynpu.tensors import Array

OF_VARIATION, OF_MAGNITUDE = 1e-3, 1e-5
# Inputs that cannot be moved by a last bit say nothing about rounding: more of it is allowed for.
OF_MAGNITUDE_UNMOVED = 1e-4
MOVED_BY = 2.0**-22
MOVES, ROUNDINGS = 4, 32.0

Feeds = Mapping[str, Array]
Run = Callable[[Feeds], Sequence[Array]]


@dataclass(frozen=True)
class Disagreement:
    """How far one output of two computations is apart."""

    output: str
    differing: int
    samples: int
    worst: float
    """The largest difference as a share of the output's variation over the samples."""

    def __str__(self) -> str:
        size = f"up to {self.worst:.0%} of its range" if self.worst < 1e3 else "beyond its range or in shape"
        return f"output '{self.output}' on {self.differing} of {self.samples} samples by {size}"


def spread(available: int, count: int) -> list[int]:
    """Returns `count` indices evenly over all samples."""
    return [int(at) for at in np.linspace(0, available - 1, count).round()] if count else []


def disagreement(
    names: Sequence[str], reference: Run, candidate: Run, feeds: Sequence[Feeds], slack: float = 1.0
) -> Disagreement | None:
    """Returns the output that two computations of the same inputs differ in most, or None where they agree.

    `slack` times the tolerance is for computations by other kernels.
    """
    wanted = [list(reference(feed)) for feed in feeds]
    got = [list(candidate(feed)) for feed in feeds]
    movable = any(array.dtype.kind == "f" for feed in feeds[:1] for array in feed.values())
    worst: Disagreement | None = None
    for place, name in enumerate(names):
        suspects, scale, errors, allowed = _suspects(
            [outputs[place] for outputs in wanted],
            [outputs[place] for outputs in got],
            slack * OF_VARIATION,
            slack * (OF_MAGNITUDE if movable else OF_MAGNITUDE_UNMOVED),
        )
        differing = {
            at: error
            for at, error in suspects.items()
            if not _rounding(reference, feeds[at], place, errors[at], allowed)
        }
        if differing:
            here = Disagreement(name, len(differing), len(feeds), max(differing.values()) / (scale or 1.0))
            worst = max(filter(None, (worst, here)), key=lambda each: (each.differing, each.worst))
    return worst


def difference(
    names: Sequence[str], reference: Run, opened: Callable[[], Run], feeds: Sequence[Feeds], slack: float = 1.0
) -> str:
    """Says in which output what `opened` returns differs from the reference, or that it does not run; or nothing."""
    try:
        return str(disagreement(names, reference, opened(), feeds, slack) or "")
    except IntegrityError as error:
        for feed in feeds:
            reference(feed)  # raises where the original does not run either
        return f"it so that it does not run: {error.message}"


def _suspects(
    wanted: Sequence[Array], got: Sequence[Array], of_variation: float, of_magnitude: float
) -> tuple[dict[int, float], float, list[Array], Array]:
    """Returns the samples beyond the tolerance with their largest error, the output's variation, all errors, and what
    is allowed for each element."""
    infinite = np.asarray(np.inf)
    pairs = list(zip(wanted, got, strict=True))
    if any(a.shape != wanted[0].shape or a.shape != b.shape or a.dtype != b.dtype for a, b in pairs):
        broken = {
            at: float("inf")
            for at, (a, b) in enumerate(pairs)
            if a.dtype != b.dtype or not np.array_equal(a, b, equal_nan=a.dtype.kind == "f")
        }
        return broken, 1.0, [infinite] * len(wanted), np.asarray(0.0)
    errors = [_error(a, b) for a, b in pairs]
    values = np.stack(
        [np.asarray(np.nan_to_num(a.astype(np.float64), nan=0.0, posinf=0.0, neginf=0.0)) for a in wanted]
    )
    variation = np.abs(values - values.mean(axis=0)).max(axis=0) if len(wanted) > 1 else np.abs(values[0])
    magnitude = float(np.abs(values).max(initial=0.0))
    exact = wanted[0].dtype.kind not in "f"
    allowed = np.zeros_like(variation) if exact else of_variation * variation + of_magnitude * magnitude
    suspects = {at: float(error.max(initial=0.0)) for at, error in enumerate(errors) if bool((error > allowed).any())}
    scale = float(variation.max(initial=0.0))
    return suspects, scale if scale > of_magnitude * magnitude else magnitude, errors, allowed


def _error(a: Array, b: Array) -> Array:
    """Returns the distance of each pair of elements; infinite where one of them is NaN or infinite alone."""
    x, y = a.astype(np.float64), b.astype(np.float64)
    with np.errstate(invalid="ignore"):
        apart = np.abs(x - y)
    same = (x == y) | (np.isnan(x) & np.isnan(y))
    return np.asarray(np.where(same, 0.0, np.where(np.isfinite(x) & np.isfinite(y), apart, np.inf)))


def _rounding(reference: Run, feed: Feeds, place: int, error: Array, allowed: Array) -> bool:
    """Whether the reference itself moves as much when the last bits of its inputs do."""
    before = reference(feed)[place]
    own = np.zeros(error.shape)
    for seed in range(MOVES):
        moving = np.random.default_rng(seed)
        moved = {
            name: (array * (1 + MOVED_BY * moving.choice((-1.0, 1.0), array.shape))).astype(array.dtype)
            if array.dtype.kind == "f"
            else array
            for name, array in feed.items()
        }
        after = reference(moved)[place]
        if before.shape != after.shape or before.shape != error.shape:
            return False
        own = np.maximum(own, _error(before, after))
    if before.dtype.kind != "f":  # a class number that rounding turns over is a tie
        return bool((error <= own * ROUNDINGS).all())
    return bool((error <= allowed + ROUNDINGS * float(own.max(initial=0.0))).all())
