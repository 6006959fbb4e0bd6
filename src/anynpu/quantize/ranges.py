"""Range methods: which interval of real numbers the integers of a tensor shall cover.

Two passes over the data: the first finds the limits, the second fills one histogram per tensor between them, so memory
is bounded by the histograms whatever the number of samples. Zeros are counted apart: zero is always exactly
representable, so zeros (half of all values behind a ReLU) must not weigh in the choice of a range.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from anynpu.errors import ConfigError, IntegrityError
from anynpu.quantize.followers import Followed, Follower, Gate, Moved
from anynpu.quantize.plan import METHODS
from anynpu.tensors import Array, Quantization

if TYPE_CHECKING:
    from anynpu.quantize.adequacy import SampleLimits
    from anynpu.quantize.calibration import Dataset
    from anynpu.quantize.plan import QuantPlan

BINS = 2048
# Fractions of a limit that the MSE search tries, on each side on its own, and the entropy search on both at once.
MSE_STEPS = 40
ENTROPY_STEPS = 112
# How many powers of two the MSE search tries, from the one that clips nothing.
POWERS_OF_TWO = 5
# The share of values that entropy may clip: with few values left inside, any two distributions look alike.
ENTROPY_CLIPPED = 1e-3
# Below this many values per bin the histogram is too thin for entropy to mean anything: min-max is taken.
ENTROPY_VALUES = 8
# The smallest scale handed out: far below any real activation, far above where float32 reciprocals overflow.
SMALLEST_SCALE = 2.0**-100

Progress = Callable[[int, int], None]
Floats = NDArray[np.float64]
NONE: Mapping[str, Follower] = MappingProxyType({})


@dataclass(frozen=True)
class Range:
    """An interval of real numbers."""

    min: float
    max: float

    def __post_init__(self) -> None:
        if not (np.isfinite(self.min) and np.isfinite(self.max)) or self.min > self.max:
            raise ConfigError(f"[{self.min}, {self.max}] is not a range")


@dataclass
class Histogram:
    """Counts and sums of the values other than zero in equal bins from `low` to `high`, and the number of zeros."""

    low: float
    high: float
    counts: NDArray[np.int64] = field(default_factory=lambda: np.zeros(BINS, np.int64))
    sums: Floats = field(default_factory=lambda: np.zeros(BINS, np.float64))
    zeros: int = 0

    @property
    def width(self) -> float:
        return (self.high - self.low) / len(self.counts)

    def add(self, values: Array) -> None:
        flat = np.asarray(values, np.float64).ravel()
        nonzero = flat[flat != 0.0]
        self.zeros += flat.size - nonzero.size
        index = np.clip(((nonzero - self.low) / self.width).astype(np.int64), 0, len(self.counts) - 1)
        self.counts += np.bincount(index, minlength=len(self.counts))
        self.sums += np.bincount(index, weights=nonzero, minlength=len(self.counts))

    def points(self) -> tuple[Floats, Floats]:
        """Returns the mean value of each filled bin and its count."""
        filled = self.counts > 0
        return self.sums[filled] / self.counts[filled], self.counts[filled].astype(np.float64)


class RangeCollector:
    """Collects what the range method needs: limits in the first pass, histograms in the second.

    `followers` are the functions that alone read a tensor; method "auto" chooses its range by the error behind them.
    """

    def __init__(
        self,
        method: str,
        percentile: float = 99.99,
        bits: int = 8,
        symmetric: bool = False,
        followers: Mapping[str, Follower] = NONE,
        observed: SampleLimits | None = None,
        power_of_two: bool = False,
    ) -> None:
        if method not in METHODS:
            raise ConfigError(f"no such range method: {method}", "known: " + ", ".join(METHODS))
        if not 50.0 < percentile <= 100.0:
            raise ConfigError(f"percentile {percentile} is not above 50 and at most 100")
        self.method, self.percentile, self.bits, self.symmetric = method, percentile, bits, symmetric
        self.power_of_two, self.observed = power_of_two, observed
        self._limits: dict[str, Range] = {}
        self._histograms: dict[str, Histogram] = {}
        self._followed = {name: Followed(each) for name, each in followers.items() if method == "auto"}

    @property
    def followed(self) -> Collection[str]:
        """The tensors whose values are counted for the function behind them."""
        return self._followed.keys()

    @property
    def passes(self) -> int:
        return 1 if self.method in ("auto", "minmax") else 2

    def observe_limits(
        self, tensors: Mapping[str, Array], sample: int, ends: Mapping[str, Array] = MappingProxyType({})
    ) -> None:
        """Takes the limits of one sample's floating-point tensors; integer tensors have no range. `ends` are fewer
        values with the same limits, where they are known."""
        for name, array in tensors.items():
            if array.dtype.kind != "f" or array.size == 0:
                continue
            few = ends.get(name, array)
            low, high = float(few.min()), float(few.max())
            if not (np.isfinite(low) and np.isfinite(high)):
                raise IntegrityError(f"tensor {name} holds NaN or infinite values at calibration sample {sample}")
            if self.observed is not None:
                self.observed.observe(name, low, high)
            old = self._limits.get(name)
            self._limits[name] = Range(low, high) if old is None else Range(min(old.min, low), max(old.max, high))
            if name in self._followed:
                self._followed[name].observe(array)

    def of(
        self,
        followers: Mapping[str, Follower],
        same: Mapping[str, str],
        reached: Mapping[str, tuple[Floats, Floats]],
    ) -> RangeCollector | None:
        """Returns what was seen, as of another graph: tensors that have the values of one that was seen, and the limits
        in each sample of others; None where a function follows that its argument was not counted for."""
        observed = None if self.observed is None else self.observed.of(same, reached)
        how = self.method, self.percentile, self.bits, self.symmetric
        result = RangeCollector(*how, followers, observed, self.power_of_two)
        result._limits = {name: self._limits[source] for name, source in same.items() if source in self._limits}
        result._limits |= {name: Range(float(low.min()), float(high.max())) for name, (low, high) in reached.items()}
        for name, followed in result._followed.items():
            counted = self._followed.get(same.get(name, ""))
            if isinstance(followed.follower, Gate | Moved):
                continue
            if counted is None or not isinstance(counted.follower, type(followed.follower)):
                return None
            followed.counts, followed.least_top = counted.counts, counted.least_top
        return result

    def observe_values(self, tensors: Mapping[str, Array]) -> None:
        """Adds one sample's values to the histograms."""
        for name, array in tensors.items():
            limits = self._limits.get(name)
            if limits is None or array.size == 0 or (limits.max - limits.min) / BINS < SMALLEST_SCALE:
                continue  # a constant needs no histogram
            if name not in self._histograms:
                self._histograms[name] = Histogram(limits.min, limits.max)
            self._histograms[name].add(array)

    def ranges(self, whole: Collection[str] = ()) -> dict[str, Range]:
        """Returns the range of every tensor seen; those named in `whole` keep all their values."""
        return {name: limits if name in whole else self._range(name, limits) for name, limits in self._limits.items()}

    def _range(self, name: str, limits: Range) -> Range:
        followed, histogram = self._followed.get(name), self._histograms.get(name)
        if followed is not None and isinstance(followed.follower, Moved):
            end = followed.follower.result
            return self._range(end, self._limits[end]) if end in self._limits else limits
        if followed is not None:
            return Range(*followed.limits(limits.min, limits.max, self.bits))
        if histogram is None:
            return limits
        if self.method == "percentile":
            return percentile_range(histogram, self.percentile)
        if self.method == "mse" and self.power_of_two:
            return power_of_two_range(histogram, self.bits)
        if self.method == "mse":
            return mse_range(histogram, self.bits, self.symmetric)
        return entropy_range(histogram, self.bits, self.symmetric)


def collect(
    run: Callable[[dict[str, Array]], Mapping[str, Array]],
    data: Dataset,
    method: str,
    percentile: float = 99.99,
    bits: int = 8,
    symmetric: bool = False,
    progress: Progress | None = None,
    whole: Collection[str] = (),
    followers: Mapping[str, Follower] = NONE,
    observed: SampleLimits | None = None,
    power_of_two: bool = False,
) -> dict[str, Range]:
    """Returns the range of every floating-point tensor that `run` gives for the samples of `data`.

    Tensors named in `whole` are not clipped, whatever the method: a model's outputs are its answers, and in the score
    maps of a detector the few values far above all others are the objects. `followers` are as for `RangeCollector`;
    `observed` takes the limits of each sample.
    """
    collector = RangeCollector(method, percentile, bits, symmetric, followers, observed, power_of_two)
    total = data.count * collector.passes
    for step in range(total):
        sample = step % data.count
        tensors = run(data.sample(sample))
        if step < data.count:
            collector.observe_limits(tensors, sample)
        else:
            collector.observe_values(tensors)
        if progress is not None:
            progress(step + 1, total)
    return collector.ranges(whole)


def quantization_for(range: Range, dtype: str, symmetric: bool, power_of_two: bool = False) -> Quantization:
    """Returns the scale and zero point that cover `range` and zero; zero is exactly representable. A scale that is to
    be a power of two is a symmetric one."""
    limits = np.iinfo(dtype)
    low, high = min(range.min, 0.0), max(range.max, 0.0)
    middle = 0 if limits.min < 0 else (limits.max + 1) // 2
    if low == high:
        return Quantization((1.0,), (middle if symmetric else 0,))
    if power_of_two:
        step = max(low / (limits.min - middle), high / (limits.max - middle), SMALLEST_SCALE)
        return Quantization((2.0 ** math.ceil(math.log2(step)),), (middle,))
    if symmetric:
        scale = _storable(max(-low, high) / (limits.max - middle))
        return Quantization((scale,), (middle,))
    scale = _storable((high - low) / (limits.max - limits.min))
    zero_point = int(np.clip(np.rint(limits.min - low / scale), limits.min, limits.max))
    return Quantization((scale,), (zero_point,))


def planned_form(range: Range, dtype: str, plan: QuantPlan) -> Quantization:
    """Returns the scale and zero point that a plan gives a range in a type."""
    return quantization_for(range, dtype, plan.is_symmetric(dtype), plan.power_of_two)


def _storable(scale: float) -> float:
    """Returns the scale as files keep it: float32, and never so small that its reciprocal overflows."""
    return float(np.float32(max(scale, SMALLEST_SCALE)))


def percentile_range(histogram: Histogram, percentile: float) -> Range:
    """Returns the interval that holds `percentile` percent of the values; one-sided tensors are cut on one side."""
    points, counts = histogram.points()
    if histogram.zeros:
        at = int(np.searchsorted(points, 0.0))
        points, counts = np.insert(points, at, 0.0), np.insert(counts, at, float(histogram.zeros))
    share = np.cumsum(counts) / np.sum(counts)
    outside = 1.0 - percentile / 100.0
    two_sided = histogram.low < 0.0 < histogram.high
    cut_low = outside / 2 if two_sided else (outside if histogram.low < 0.0 else 0.0)
    cut_high = outside - cut_low
    # The first value whose share passes the cut; a rounding of the last bit must not drop the extreme value.
    low = points[np.searchsorted(share, cut_low, side="right")] if cut_low > 0 else histogram.low
    high = points[min(int(np.searchsorted(share, 1.0 - cut_high - 1e-12)), len(points) - 1)] if cut_high > 0 else None
    return Range(float(low), float(histogram.high if high is None else max(high, low)))


def mse_range(histogram: Histogram, bits: int, symmetric: bool) -> Range:
    """Returns the interval with the least squared error of quantising the histogram, of those the search tries."""
    points, counts = histogram.points()
    if not len(points):
        return Range(histogram.low, histogram.high)
    candidates = mse_candidates(histogram, symmetric)
    # In pieces that stay in the processor's cache.
    errors = []
    for part in np.array_split(np.asarray(candidates), max(1, len(candidates) // 32)):
        # The summed squared error of the histogram under each of the candidate intervals
        low, high = part[:, :1], part[:, 1:]
        steps = 2**bits - 2 if symmetric else 2**bits - 1
        scale = 2.0 * np.maximum(-low, high) / steps if symmetric else (high - low) / steps
        stored_low = np.full_like(low, -(steps // 2)) if symmetric else np.rint(low / scale)
        stored = np.rint(points / scale)
        np.clip(stored, stored_low, stored_low + steps, out=stored)
        error = (points - stored * scale) ** 2
        # Where several steps share a bin, its mean says nothing about rounding, which is then even over a step.
        coarse = (histogram.width > scale / 2) & (stored > stored_low) & (stored < stored_low + steps)
        errors.append(np.asarray(np.where(coarse, scale**2 / 12, error) @ counts))
    return Range(*candidates[int(np.argmin(np.concatenate(errors)))])


def power_of_two_range(histogram: Histogram, bits: int) -> Range:
    """Returns the interval that the integers of some power of two cover, with the least squared error of a few."""
    points, counts = histogram.points()
    low, high = min(histogram.low, 0.0), max(histogram.high, 0.0)
    least, most = -(2 ** (bits - 1)), 2 ** (bits - 1) - 1
    best, smallest = Range(low, high), np.inf
    finest = math.ceil(math.log2(max(low / least, high / most, SMALLEST_SCALE)))
    for scale in 2.0 ** np.arange(finest, finest - POWERS_OF_TWO, -1):
        error = float((points - np.clip(np.rint(points / scale), least, most) * scale) ** 2 @ counts)
        if error < smallest:
            best, smallest = Range(max(low, least * scale), min(high, most * scale)), error
    return best


def mse_candidates(histogram: Histogram, symmetric: bool) -> list[tuple[float, float]]:
    """Returns the intervals the MSE search tries, widest first."""
    fractions = np.linspace(1.0, 1.0 / MSE_STEPS, MSE_STEPS)
    low, high = min(histogram.low, 0.0), max(histogram.high, 0.0)
    if symmetric:
        top = max(-low, high)
        return [(max(low, -top * f), min(high, top * f)) for f in np.linspace(1.0, 0.02, 4 * MSE_STEPS).tolist()]
    lows = (low * fractions).tolist() if low < 0.0 else [0.0]
    highs = (high * fractions).tolist() if high > 0.0 else [0.0]
    return [(a, b) for a in lows for b in highs]


def entropy_range(histogram: Histogram, bits: int, symmetric: bool) -> Range:
    """Returns the interval whose quantised distribution diverges least (Kullback-Leibler) from the clipped one."""
    if bits > 8:
        return Range(histogram.low, histogram.high)  # a bin is wider than a step: quantising loses nothing to see
    points, counts = histogram.points()
    if counts.sum() < ENTROPY_VALUES * BINS:
        return Range(histogram.low, histogram.high)
    best, best_divergence = Range(histogram.low, histogram.high), np.inf
    for low, high in entropy_candidates(histogram):
        divergence = _divergence(points, counts, low, high, bits, symmetric)
        if divergence < best_divergence:
            best, best_divergence = Range(low, high), divergence
    return best


def entropy_candidates(histogram: Histogram) -> list[tuple[float, float]]:
    """Returns the intervals the entropy search tries: one threshold for both sides, widest first."""
    top = max(-histogram.low, histogram.high)
    # Below one bin per quantisation level the divergence is nought by construction.
    fractions = np.linspace(1.0, 256 / BINS, ENTROPY_STEPS).tolist()
    low, high = min(histogram.low, 0.0), max(histogram.high, 0.0)
    return [(max(low, -top * f), min(high, top * f)) for f in fractions]


def _divergence(points: Floats, counts: Floats, low: float, high: float, bits: int, symmetric: bool) -> float:
    inside = (points >= low) & (points <= high)
    kept, values = counts[inside], points[inside]
    if kept.sum() < (1.0 - ENTROPY_CLIPPED) * counts.sum():
        return float("inf")
    reference = kept.copy()
    reference[0] += counts[points < low].sum()
    reference[-1] += counts[points > high].sum()
    scale = 2.0 * max(-low, high) / (2**bits - 2) if symmetric else (high - low) / (2**bits - 1)
    level = np.rint((values - values[0]) / scale).astype(np.int64)
    pooled = np.bincount(level, weights=kept) / np.maximum(np.bincount(level), 1)
    p, q = reference / reference.sum(), pooled[level] / kept.sum()
    # A finite sample diverges from its own average by half a value for each bin more than levels: no loss of the range.
    chance = (len(kept) - len(np.unique(level))) / (2.0 * reference.sum())
    return float(np.sum(p * np.log(p / q)) - chance)
