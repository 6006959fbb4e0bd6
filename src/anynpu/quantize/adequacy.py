"""Are there enough calibration samples? The limits of every tensor in every sample are kept while ranges are found, so
that the ranges of fewer samples are known without another run: what twice as many samples would change shows in what
half of them would have given.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

import numpy as np
from numpy.typing import NDArray

from anynpu.quantize.calibration import Dataset, distinct
from anynpu.quantize.ranges import Range
from anynpu.records.calibration import Calibration, MovingRange

Floats = NDArray[np.float64]
MOVES = 0.1
"""A range moves where twice as many samples are expected to widen it by more than this share."""


class SampleLimits:
    """The smallest and the largest value of each tensor in each sample."""

    def __init__(self) -> None:
        self.lows: dict[str, list[float]] = {}
        self.highs: dict[str, list[float]] = {}

    def observe(self, name: str, low: float, high: float) -> None:
        """Adds one tensor of one sample."""
        self.lows.setdefault(name, []).append(low)
        self.highs.setdefault(name, []).append(high)

    def of(self, same: Mapping[str, str], reached: Mapping[str, tuple[Floats, Floats]]) -> SampleLimits:
        """Returns the limits of tensors that have the values of one that was seen, and those that are known of
        others."""
        limits = SampleLimits()
        limits.lows = {name: self.lows[source] for name, source in same.items() if source in self.lows}
        limits.highs = {name: self.highs[source] for name, source in same.items() if source in self.highs}
        limits.lows |= {name: low.tolist() for name, (low, _) in reached.items()}
        limits.highs |= {name: high.tolist() for name, (_, high) in reached.items()}
        return limits


def expected_largest(values: Floats, count: int) -> float:
    """Returns the expected largest of `count` of the values, drawn without putting back."""
    ordered = np.sort(values)
    n = len(ordered)
    # The k-th smallest is the largest of a draw whose others lie below it: C(k - 1, count - 1) of C(n, count) draws,
    # counted from the largest value down.
    share, total, left = count / n, 0.0, 1.0
    for k in range(n - 1, count - 2, -1):
        total += share * ordered[k]
        left -= share
        share *= (k - count + 1) / k if k else 0.0
    return float(total + max(left, 0.0) * ordered[max(count - 1, 0)])


def growth(lows: Floats, highs: Floats, limits: Range) -> float:
    """Returns the share by which all samples widen the range beyond what half of them are expected to give.

    What the range leaves out on purpose, such as values that a SiLU makes nothing of, does not count.
    """
    bottom, top = min(limits.min, 0.0), max(limits.max, 0.0)
    if top - bottom <= 0.0 or len(lows) < 2:
        return 0.0
    half = (len(lows) + 1) // 2
    high = expected_largest(np.clip(highs, 0.0, top), half)
    low = -expected_largest(-np.clip(lows, bottom, 0.0), half)
    return (top - bottom) / max(high - low, (top - bottom) * 1e-3) - 1.0


def calibration(
    observed: SampleLimits, ranges: Mapping[str, Range], data: Dataset, scaled: Collection[str] = ()
) -> Calibration:
    """Returns what the samples say of their ranges; `scaled` are tensors whose values are not the float model's."""
    shares = {
        name: growth(np.asarray(lows), np.asarray(observed.highs[name]), ranges[name])
        for name, lows in observed.lows.items()
        if name in ranges
    }
    moving = sorted(((share, name) for name, share in shares.items() if share > MOVES), reverse=True)
    return Calibration(
        samples=data.count,
        distinct=distinct(data),
        constant=all(
            array[:1].size > 1 and all(bool((row == row.flat[0]).all()) for row in array)
            for array in data.inputs.values()
        ),
        moving=tuple(MovingRange(tensor=name, growth=round(share, 4)) for share, name in moving),
        limits={
            name: (min(lows), max(observed.highs[name])) for name, lows in observed.lows.items() if name not in scaled
        },
    )
