"""Tests and intervals between two sides: the launch of a process is the unit of replication.

Thousands of inferences in one process share one memory layout, one clock frequency and one neighbour; two processes do
not. All statements about a difference therefore rest on the medians of launches, not on the pooled samples.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import combinations
from statistics import NormalDist

import numpy as np

from anynpu.errors import ConfigError
from anynpu.tensors import Array

RESAMPLES = 9999
EXACT_UP_TO = 20_000
"""Up to this many ways to share out the launches, all of them are tried."""
Launches = Sequence[Sequence[float]]


def normal_two_sided(z: float) -> float:
    """Returns the two-sided p-value of a standard normal deviate."""
    return math.erfc(abs(z) / math.sqrt(2))


def student_quantile(probability: float, freedom: int) -> float:
    """Returns the quantile of Student's t (expansion around the normal; good to 1 % from 3 degrees of freedom)."""
    z = NormalDist().inv_cdf(probability)
    terms = (
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
        (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / 92160,
    )
    return z + sum(term / float(freedom) ** (i + 1) for i, term in enumerate(terms))


def log_medians(launches: Launches) -> Array:
    """Returns the logarithm of each launch's median; every launch needs samples, all positive and finite."""
    if not launches:
        raise ConfigError("there are no launches to compare")
    logs = []
    for launch in launches:
        values = np.asarray(launch, np.float64)
        if not values.size or not np.isfinite(values).all() or values.min() <= 0:
            raise ConfigError(
                "a launch without samples, or with times that are not positive numbers, cannot be compared"
            )
        logs.append(math.log(float(np.median(values))))
    return np.asarray(logs)


def bootstrap_ratio(
    a_launches: Launches, b_launches: Launches, confidence: float = 0.95, rng: np.random.Generator | None = None
) -> tuple[float, float, float]:
    """Returns the ratio of medians, B over A, and its bootstrap interval over launches.

    A launch's median already carries the noise within the launch, so launches alone are drawn anew. With five of them
    the plain bootstrap is far too narrow: it is smoothed by the variance that it lacks, and its percentiles are moved
    out from the normal's to those of Student's t.
    """
    a, b = log_medians(a_launches), log_medians(b_launches)
    if min(a.size, b.size) < 2:
        raise ConfigError("an interval needs two launches of each side at least", "use --launches 5")
    rng = rng or np.random.default_rng(0)
    drawn = _means(b, rng) - _means(a, rng)
    lacking = a.var(ddof=1) / a.size**2 + b.var(ddof=1) / b.size**2
    drawn += rng.normal(0, math.sqrt(lacking), RESAMPLES)
    tail = NormalDist().cdf(-student_quantile(0.5 + confidence / 2, a.size + b.size - 2))
    low, high = np.quantile(drawn, (tail, 1 - tail))
    return math.exp(b.mean() - a.mean()), math.exp(low), math.exp(high)


def _means(values: Array, rng: np.random.Generator) -> Array:
    return np.asarray(values[rng.integers(0, values.size, (RESAMPLES, values.size))].mean(axis=1))


def permutation_test(a_launches: Launches, b_launches: Launches, rng: np.random.Generator | None = None) -> float:
    """Returns the two-sided p-value that launches of A and B differ by accident: exact for few, drawn for many."""
    a, b = log_medians(a_launches), log_medians(b_launches)
    both = np.concatenate([a, b])
    seen = abs(b.mean() - a.mean()) * (1 - 1e-12)
    ways = math.comb(both.size, a.size)
    if ways <= EXACT_UP_TO:
        chosen = np.asarray(list(combinations(range(both.size), a.size)))
    else:
        rng = rng or np.random.default_rng(0)
        chosen = np.argsort(rng.random((RESAMPLES, both.size)), axis=1)[:, : a.size]
    first = both[chosen].sum(axis=1)
    gaps = np.abs((both.sum() - first) / b.size - first / a.size)
    extreme = int((gaps >= seen).sum())
    return extreme / ways if ways <= EXACT_UP_TO else (extreme + 1) / (RESAMPLES + 1)


def holm(p_values: Sequence[float]) -> tuple[float, ...]:
    """Returns the p-values adjusted for being several (Holm), in the order given."""
    order = sorted(range(len(p_values)), key=lambda i: p_values[i])
    adjusted, highest = [0.0] * len(p_values), 0.0
    for place, i in enumerate(order):
        highest = max(highest, min(1.0, (len(p_values) - place) * p_values[i]))
        adjusted[i] = highest
    return tuple(adjusted)


def mcnemar(b: int, c: int) -> float:
    """Returns the exact two-sided p-value that of b + c samples on which two sides disagree so few favour one."""
    n, few = b + c, min(b, c)
    if n == 0:
        return 1.0
    logs = [math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1) for k in range(few + 1)]
    return min(1.0, 2 * math.fsum(math.exp(each - n * math.log(2)) for each in logs))


def paired_bootstrap(
    differences: Sequence[float], confidence: float = 0.95, rng: np.random.Generator | None = None
) -> tuple[float, float, float]:
    """Returns the mean of paired differences and its bootstrap interval (percentiles, widened for small samples)."""
    values = _differences(differences)
    rng = rng or np.random.default_rng(0)
    # Chunks: 10,000 resamples of 50,000 images would not fit into memory at once.
    rows = max(1, min(RESAMPLES, 2_000_000 // values.size))
    means = np.concatenate(
        [
            values[rng.integers(0, values.size, (min(rows, RESAMPLES - done), values.size))].mean(axis=1)
            for done in range(0, RESAMPLES, rows)
        ]
    )
    n = values.size
    reach = student_quantile(0.5 + confidence / 2, max(n - 1, 1)) * math.sqrt(n / max(n - 1, 1))
    tail = NormalDist().cdf(-reach)
    low, high = np.quantile(means, (tail, 1 - tail))
    return float(values.mean()), float(low), float(high)


def bca(value: float, drawn: Array, left_out: Array, confidence: float = 0.95) -> tuple[float, float]:
    """Returns the bias-corrected and accelerated interval (BCa) of a figure, which always holds the figure itself.

    `drawn` are its values on draws of the samples, `left_out` those without one sample, or one group of them, in turn.
    A figure that is not linear in the samples, such as an average precision, is biased on draws, in which some samples
    come twice: their plain percentiles miss the figure, for few samples entirely.
    """
    drawn, left_out = drawn[np.isfinite(drawn)], left_out[np.isfinite(left_out)]
    if not drawn.size:
        return value, value
    below = ((drawn < value).sum() + (drawn == value).sum() / 2) / drawn.size
    edge = 1 / (drawn.size + 1)
    bias = NormalDist().inv_cdf(min(max(float(below), edge), 1 - edge))
    apart = left_out.mean() - left_out if left_out.size > 1 else np.zeros(1)
    spread = float((apart**2).sum())
    acceleration = float((apart**3).sum()) / (6 * spread**1.5) if spread > 1e-24 else 0.0
    ends = []
    for share in (0.5 - confidence / 2, 0.5 + confidence / 2):
        reach = bias + NormalDist().inv_cdf(share)
        ends.append(float(np.quantile(drawn, NormalDist().cdf(bias + reach / max(1 - acceleration * reach, 0.1)))))
    return min(ends[0], value), max(ends[1], value)


def sign_flip_test(differences: Sequence[float], rng: np.random.Generator | None = None) -> float:
    """Returns the two-sided p-value that paired differences have mean zero (random signs)."""
    values = _differences(differences)
    values = values[values != 0]
    if not values.size:
        return 1.0
    rng = rng or np.random.default_rng(0)
    seen = abs(values.sum()) * (1 - 1e-12)
    extreme = 0
    for _ in range(RESAMPLES):
        signs = rng.integers(0, 2, values.size) * 2 - 1
        extreme += abs(float(signs @ values)) >= seen
    return (extreme + 1) / (RESAMPLES + 1)


def _differences(differences: Sequence[float]) -> Array:
    values = np.asarray(differences, np.float64)
    if values.ndim != 1 or not values.size or not np.isfinite(values).all():
        raise ConfigError("paired differences have to be finite numbers, one a sample")
    return values


def wilson(successes: int, n: int, confidence: float = 0.95) -> tuple[float, float]:
    """Returns the Wilson interval of a share, such as an accuracy."""
    if n < 1 or not 0 <= successes <= n:
        raise ConfigError(f"{successes} of {n}: no share has an interval")
    z = NormalDist().inv_cdf(0.5 + confidence / 2)
    share = successes / n
    middle = (share + z * z / (2 * n)) / (1 + z * z / n)
    half = z / (1 + z * z / n) * math.sqrt(share * (1 - share) / n + z * z / (4 * n * n))
    return max(0.0, middle - half) if successes else 0.0, min(1.0, middle + half) if successes < n else 1.0
