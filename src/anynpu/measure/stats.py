"""What a list of latencies supports saying, and no more.

Percentiles are nearest rank (`sorted[ceil(p n) - 1]`), never interpolated. Nothing is deleted: outliers, drift, a
second mode and autocorrelation are reported with the figures they disturb. Tests of two sides are in `significance`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from anynpu.errors import ConfigError
from anynpu.measure.significance import (
    bootstrap_ratio,
    holm,
    mcnemar,
    normal_two_sided,
    paired_bootstrap,
    permutation_test,
    sign_flip_test,
    wilson,
)
from anynpu.records.shared import Estimate, Modes, Summary, Trend
from anynpu.tensors import Array

__all__ = [
    "Estimate",
    "Modes",
    "Summary",
    "Trend",
    "bimodal",
    "bootstrap_ratio",
    "coverage",
    "effective_size",
    "holm",
    "interval",
    "mcnemar",
    "needed",
    "outliers",
    "paired_bootstrap",
    "percentile",
    "permutation_test",
    "sign_flip_test",
    "summarize",
    "trend",
    "wilson",
]

Samples = Sequence[float] | Array
TIME_UNITS = ("s", "ms", "us", "ns")
"""Figures in another unit are counts, and are not called latency."""
PERCENTILES = (0.5, 0.9, 0.95, 0.99, 0.999)
OUTLIER_MADS = 5.0
"""An outlier lies this many robust standard deviations (1.4826 MAD) above the median."""
MAD_TO_SIGMA = 1.4826
TREND_POINTS = 512
MODE_GRID = 512
MODE_SHARE = 0.05
"""A mode holds at least this share of the samples; less is a handful of spikes, which `outliers` names."""
MODE_VALLEY = 0.5
MODE_LEVEL = 1e-4
FEWEST_FOR_MODES = 50
FEWEST_FOR_TREND = 8


def checked(samples: Samples) -> Array:
    """Returns the samples as an array; an empty list, NaN and infinity raise ConfigError."""
    values = np.asarray(samples, np.float64)
    if values.ndim != 1 or not values.size:
        raise ConfigError("there are no samples to summarise")
    if not np.isfinite(values).all():
        raise ConfigError("the samples hold NaN or infinite values")
    return values


def quantity(unit: str) -> str:
    """Returns what figures in a unit are called: a time is a latency, a count is what it counts."""
    return "latency" if unit in TIME_UNITS else unit


def percentile(samples: Samples, p: float) -> float:
    """Returns the nearest-rank percentile: the smallest sample that at least a share `p` of all do not exceed."""
    values = np.sort(checked(samples))
    # The small step back keeps 0.95 * 100 = 95.00000000000001 from becoming rank 96.
    rank = math.ceil(p * values.size - 1e-9)
    return float(values[min(max(rank, 1), values.size) - 1])


def needed(p: float, confidence: float = 0.99) -> int:
    """Returns the minimum number of samples before percentile `p` may be claimed (early stopping, one above it)."""
    if not 0 < p < 1:
        raise ConfigError(f"percentile {p}: a number between 0 and 1 was expected")

    def chance(n: int) -> float:  # of at most one sample above the percentile
        return p**n + n * (1 - p) * p ** (n - 1)

    high = 2
    while chance(high) > 1 - confidence:
        high *= 2
    low = high // 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if chance(middle) > 1 - confidence else (low, middle)
    return high


def _binomial(n: int, p: float) -> Array:
    """Returns the chance of each count of samples below the percentile."""
    counts = np.arange(n + 1)
    factorials = np.concatenate([[0.0], np.cumsum(np.log(np.arange(1, n + 1)))])
    logs = factorials[n] - factorials - factorials[::-1] + counts * math.log(p) + (n - counts) * math.log1p(-p)
    return np.asarray(np.exp(logs))


def coverage(n: int, p: float, confidence: float = 0.95) -> float | None:
    """Returns the chance that `interval` holds the percentile: the first above `confidence` that ranks can give."""
    ranks = _ranks(n, p, confidence)
    return None if ranks is None else float(_binomial(n, p)[ranks[0] : ranks[1]].sum())


def _ranks(n: int, p: float, confidence: float) -> tuple[int, int | None] | None:
    """Returns the ranks (from 1) of the two order statistics that enclose the percentile."""
    chances = _binomial(n, p)
    below = np.cumsum(chances)
    tail = (1 - confidence) / 2
    low = int(np.searchsorted(below, tail, side="right"))  # the most ranks with P(X <= low - 1) <= tail
    if low < 1:
        return None
    above = np.cumsum(chances[::-1])[::-1]  # above[k] = P(X >= k)
    fits = np.flatnonzero(above <= tail)
    return low, int(fits[0]) if fits.size else None


def interval(
    samples: Samples, p: float, confidence: float = 0.95, effective: float | None = None
) -> tuple[float, float | None] | None:
    """Returns the order-statistic interval of a percentile: None for too few samples, no upper end where there is none.

    It assumes nothing of the distribution, but independent samples: give the `effective` size where they are not.
    """
    values = np.sort(checked(samples))
    n = values.size
    size = n if effective is None else max(1, min(n, int(effective)))
    ranks = _ranks(size, p, confidence)
    if ranks is None:
        return None
    low, high = ranks
    if size != n:
        low = max(1, math.floor(low * n / size))
        high = None if high is None else min(n, math.ceil(high * n / size))
    return float(values[low - 1]), None if high is None else float(values[high - 1])


def effective_size(samples: Samples) -> float:
    """Returns how many independent samples these are worth (autocorrelation of ranks, initial positive sequence)."""
    values = checked(samples)
    n = values.size
    if n < 4 or values.min() == values.max():
        return float(n)
    # Mid-ranks, so that one spike cannot rule the autocorrelation
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    ends = np.cumsum(counts)
    ranks = np.asarray((ends - (counts - 1) / 2)[inverse], np.float64)
    size = 1 << (2 * n - 1).bit_length()
    spectrum = np.fft.rfft(ranks - ranks.mean(), size)
    covariance = np.fft.irfft(spectrum * np.conj(spectrum), size)[:n]
    rho = covariance / covariance[0] if covariance[0] > 0 else np.zeros(n)
    if rho[1] < 2.33 / math.sqrt(n):  # no correlation that the sample could show: do not take noise for it
        return float(n)
    pairs = rho[: n // 2 * 2].reshape(-1, 2).sum(axis=1)
    stops = np.flatnonzero(pairs <= 0)
    kept = np.minimum.accumulate(pairs[: stops[0] if stops.size else None])
    return float(max(1.0, min(n, n / max(2 * kept.sum() - 1, 1.0))))


def trend(samples: Samples) -> Trend:
    """Returns the Mann-Kendall trend over block medians (512 at most), its variance widened for autocorrelation."""
    values = checked(samples)
    block = math.ceil(values.size / TREND_POINTS)
    whole = values.size // block * block
    values = np.asarray(np.median(values[:whole].reshape(-1, block), axis=1))
    n = values.size
    if n < FEWEST_FOR_TREND or values.min() == values.max():
        return Trend(0.0, 1.0)
    first, second = np.triu_indices(n, 1)
    rises = values[second] - values[first]
    score = float(np.sign(rises).sum())
    ties = np.unique(values, return_counts=True)[1].astype(np.float64)
    variance = (n * (n - 1) * (2 * n + 5) - (ties * (ties - 1) * (2 * ties + 5)).sum()) / 18
    # A trend is itself autocorrelation: take it out (Theil-Sen) before looking for the rest.
    slope = float(np.median(rises / (second - first)))
    variance *= n / effective_size(values - slope * np.arange(n))
    z = max(abs(score) - 1, 0.0) / math.sqrt(variance)
    return Trend(score / (n * (n - 1) / 2), normal_two_sided(z))


def bimodal(samples: Samples) -> Modes | None:
    """Returns the two modes of the samples if a valley really parts them.

    On the logarithm of positive samples: the density's valley lies under half of the lower peak; each side holds 5 % of
    the samples; and as many samples as there are around the valley are improbable (1e-4, binomial, by effective size)
    if the density were as high there as at the lower peak.
    """
    values = checked(samples)
    if values.size < FEWEST_FOR_MODES or values.min() == values.max():
        return None
    scaled = np.log(values) if values.min() > 0 else values
    spread = min(float(scaled.std()), float(np.subtract(*np.quantile(scaled, (0.75, 0.25)))) / 1.349 or math.inf)
    steps = np.diff(np.unique(scaled))
    # A coarse clock makes a comb of its ticks; the kernel has to cover several of them.
    width = max(0.9 * spread * scaled.size**-0.2, 2 * float(np.median(steps)))
    bottom, top = float(scaled.min()) - 3 * width, float(scaled.max()) + 3 * width
    cells = int(min(max(MODE_GRID, 4 * (top - bottom) / width), 65536))
    counts, edges = np.histogram(scaled, bins=cells, range=(bottom, top))
    step = edges[1] - edges[0]
    reach = min(math.ceil(4 * width / step), (cells - 1) // 2)
    kernel = np.exp(-0.5 * (np.arange(-reach, reach + 1) * step / width) ** 2)
    grid, density = (edges[:-1] + edges[1:]) / 2, np.convolve(counts, kernel / kernel.sum(), mode="same")
    # The deepest valley below the lower of the two peaks next to it
    left, right = np.maximum.accumulate(density), np.maximum.accumulate(density[::-1])[::-1]
    lower = np.minimum(left, right)
    inner = np.flatnonzero(lower > density)
    if not inner.size:
        return None
    valley = int(inner[np.argmax(lower[inner] - density[inner])])
    first, last = int(np.argmax(density[:valley])), valley + int(np.argmax(density[valley:]))
    depth = float(density[valley] / min(density[first], density[last]))
    share = float((scaled > grid[valley]).mean())
    if (
        depth > MODE_VALLEY
        or min(share, 1 - share) < MODE_SHARE
        or _accident(scaled, grid, (first, valley, last)) > MODE_LEVEL
    ):
        return None
    back = np.exp if values.min() > 0 else np.asarray
    low, split, high = (float(back(grid[i])) for i in (first, valley, last))
    return Modes(low, high, split, share, depth)


def _accident(values: Array, grid: Array, cells: tuple[int, int, int]) -> float:
    """Returns the chance of this few samples in the valley when the density there is that of the lower peak."""
    first, valley, last = cells
    half = (grid[last] - grid[first]) / 8

    def around(cell: int) -> int:
        return int((np.abs(values - grid[cell]) <= half).sum())

    inside, beside = around(valley), min(around(first), around(last))
    if inside >= beside:
        return 1.0
    worth = effective_size(values) / values.size
    total, few = int((inside + beside) * worth), int(inside * worth)
    return mcnemar(few, total - few)


def outliers(samples: Samples, mads: float = OUTLIER_MADS) -> tuple[int, ...]:
    """Returns the indices of samples far above the median; nothing is ever deleted."""
    values = checked(samples)
    median = float(np.median(values))
    spread = MAD_TO_SIGMA * float(np.median(np.abs(values - median)))
    if spread == 0:  # more than half are equal: a coarse clock
        spread = 1.2533 * float(np.abs(values - median).mean())
    return tuple(int(i) for i in np.flatnonzero(values > median + mads * spread)) if spread > 0 else ()


def summarize(samples: Samples) -> Summary:
    """Returns what the samples support saying."""
    values = checked(samples)
    effective = effective_size(values)
    percentiles = {}
    for p in PERCENTILES:
        if values.size >= needed(p):
            low, high = interval(values, p, effective=effective) or (None, None)
            percentiles[f"p{100 * p:g}"] = Estimate(percentile(values, p), low, high)
    return Summary(
        count=values.size,
        min=float(values.min()),
        median=percentile(values, 0.5),
        median_interval=interval(values, 0.5, effective=effective),
        mad=float(np.median(np.abs(values - np.median(values)))),
        mean=float(values.mean()),
        max=float(values.max()),
        percentiles=percentiles,
        effective_size=effective,
        trend=trend(values),
        modes=bimodal(values),
        outliers=outliers(values),
    )
