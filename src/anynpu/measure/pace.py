"""Whether 8 bits are slower than the float model on this very CPU: a user who wants speed must know it."""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median

LEAST_MS = 2.0
"""Below, the calls themselves take the time, and nobody waits for either."""
CLEARLY = 1.2
PAIRS, LONGEST_S = 9, 2.0


def slower_than_float(
    run_float: Callable[[], object], run_int8: Callable[[], object], clock: Callable[[], float] = time.perf_counter
) -> list[str]:
    """Returns a sentence where the second is clearly slower than the first; they run in turn, so that other work on the
    machine slows both."""
    pairs: list[tuple[float, float]] = []
    begun = clock()
    while len(pairs) < 3 or (len(pairs) < PAIRS and clock() - begun < LONGEST_S):
        start = clock()
        run_float()
        between = clock()
        run_int8()
        pairs.append((between - start, clock() - between))
    ratio = median(int8 / max(real, 1e-9) for real, int8 in pairs)
    real_ms, int8_ms = (1000 * median(values) for values in zip(*pairs, strict=True))
    if real_ms < LEAST_MS or ratio < CLEARLY:
        return []
    return [
        f"slower than float on this CPU: {int8_ms:.3g} ms against {real_ms:.3g} ms (medians of {len(pairs)} runs in "
        "turn); `anynpu compare --time` measures it, and the float model of the build is in float/"
    ]
