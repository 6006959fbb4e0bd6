"""The clock that latencies are read from, and how fine it is."""

from __future__ import annotations

import itertools
import math
import statistics
import time
from dataclasses import dataclass

clock = time.perf_counter_ns
FINE = 100
"""A call shorter than this many steps of the clock is timed in batches."""
LARGEST_BATCH = 10_000
BATCH_NS = 100_000
"""A batch is at least this long: some ten thousand samples say as much as a million."""


@dataclass(frozen=True)
class Timer:
    """The smallest step that the clock shows between two readings, and what one reading costs."""

    resolution_ns: float
    overhead_ns: float

    def batch(self, call_ns: float) -> int:
        """Returns how many calls one timing must hold so that the clock is fine enough for it: 1 for most."""
        if call_ns >= FINE * self.resolution_ns:
            return 1
        wanted = max(2 * FINE * self.resolution_ns, BATCH_NS)
        return min(LARGEST_BATCH, math.ceil(wanted / max(call_ns, 1.0)))


def calibrate(readings: int = 2000) -> Timer:
    """Returns the resolution and the cost of the clock, measured now and here."""
    times = [clock() for _ in range(readings)]
    steps = [b - a for a, b in itertools.pairwise(times)]
    # The median: a reading that was interrupted says nothing about the others.
    return Timer(float(min((s for s in steps if s > 0), default=1)), float(statistics.median(steps)))
