"""Checks the statistics by simulation: coverage of intervals, false alarms and power of `anynpu compare`.

python bench/simulation.py [SIMULATIONS]      1,000 take five minutes; the last line is JSON
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable

import numpy as np

from anynpu.measure import stats
from anynpu.measure.compare import Rules, judge_latency

Draw = Callable[[np.random.Generator, int], np.ndarray]
DRAWS: dict[str, Draw] = {
    "normal": lambda rng, n: rng.normal(1, 0.05, n),
    "lognormal": lambda rng, n: rng.lognormal(0, 0.3, n),
    "shifted exponential": lambda rng, n: 1 + rng.exponential(0.2, n),
    "bimodal": lambda rng, n: np.where(rng.random(n) < 0.2, rng.normal(1.2, 0.02, n), rng.normal(1, 0.02, n)),
}


def quantile_coverage(rng: np.random.Generator, draw: Draw, n: int, p: float, rounds: int) -> float:
    """Returns how often the interval of a percentile holds the true one."""
    true = float(np.quantile(draw(rng, 2_000_000), p))
    hits = 0
    for _ in range(rounds):
        found = stats.interval(draw(rng, n), p)
        low, high = found if found is not None else (-math.inf, None)
        hits += low <= true <= (math.inf if high is None else high)
    return hits / rounds


def launches(
    rng: np.random.Generator, draw: Draw, count: int, n: int, spread: float, factor: float
) -> list[np.ndarray]:
    """Returns the samples of some launches; each launch has a level of its own."""
    return [factor * math.exp(rng.normal(0, spread)) * draw(rng, n) for _ in range(count)]


def compared(
    rng: np.random.Generator, draw: Draw, count: int, n: int, spread: float, factor: float, rounds: int
) -> dict[str, float]:
    """Returns how often `compare` says worse or better, and how often its interval holds the true ratio."""
    tally = {"worse": 0, "better": 0, "no difference": 0}
    inside = 0
    for seed in range(rounds):
        a, b = (launches(rng, draw, count, n, spread, f) for f in (1.0, factor))
        found = judge_latency(a, b, Rules(margin=0.0 if factor == 1 else 0.01), seed)
        tally[found.verdict] += 1
        inside += found.low <= factor <= found.high
    return {name: value / rounds for name, value in tally.items()} | {"coverage": inside / rounds}


def main(rounds: int) -> None:
    """Prints every figure as it is found and all of them as one JSON line."""
    rng = np.random.default_rng(2024)
    found: dict[str, object] = {"simulations": rounds}
    for name, draw in DRAWS.items():
        for n, p in ((100, 0.5), (200, 0.95), (1000, 0.99)):
            got, said = quantile_coverage(rng, draw, n, p, rounds), stats.coverage(n, p)
            found[f"coverage of p{100 * p:g}, n={n}, {name}"] = {"stated": said, "found": got}
    for name, draw in DRAWS.items():
        for spread in (0.0, 0.01, 0.05):
            for count in (5, 10):
                found[f"no difference, {name}, launch sd {spread:.0%}, {count} launches"] = compared(
                    rng, draw, count, 100, spread, 1.0, rounds
                )
    for spread in (0.005, 0.01, 0.015, 0.02):
        for count in (5, 10, 20):
            found[f"3 % slower, lognormal, launch sd {spread:.1%}, {count} launches"] = compared(
                rng, DRAWS["lognormal"], count, 1000, spread, 1.03, rounds
            )
    for name, value in found.items():
        sys.stdout.write(f"{name}: {value}\n")
    sys.stdout.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 1000)
