"""What a sample supports: percentiles, intervals, drift, modes, outliers; bench/simulation.py simulates it in full."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest

from anynpu.errors import ConfigError
from anynpu.measure import stats
from anynpu.schema import to_dict

Draw = Callable[[np.random.Generator, int], np.ndarray]
UNIMODAL: dict[str, Draw] = {
    "normal": lambda rng, n: rng.normal(10, 1, n),
    "lognormal": lambda rng, n: rng.lognormal(0, 0.5, n),
    "shifted exponential": lambda rng, n: 1 + rng.exponential(0.1, n),
    "uniform": lambda rng, n: rng.uniform(1, 2, n),
    "a coarse clock": lambda rng, n: np.round(rng.normal(10, 0.1, n), 1),
}


def bimodal_draw(rng: np.random.Generator, n: int) -> np.ndarray:
    return np.where(rng.random(n) < 0.2, rng.normal(12, 0.3, n), rng.normal(10, 0.3, n))


def autocorrelated(rng: np.random.Generator, n: int, phi: float) -> np.ndarray:
    noise = rng.normal(size=n)
    for i in range(1, n):
        noise[i] += phi * noise[i - 1]
    return noise + 100


@pytest.mark.parametrize(("p", "value"), [(0.5, 50), (0.9, 90), (0.95, 95), (0.991, 100), (1.0, 100), (0.0, 1)])
def test_percentiles_are_nearest_rank(p: float, value: int) -> None:
    assert stats.percentile(list(range(100, 0, -1)), p) == value


@pytest.mark.parametrize(("p", "count"), [(0.5, 11), (0.9, 64), (0.95, 130), (0.99, 662), (0.999, 6636)])
def test_a_percentile_is_claimed_from_the_published_counts_on(p: float, count: int) -> None:
    assert stats.needed(p) == count


@pytest.mark.parametrize(
    ("n", "p", "ranks"),
    [
        (100, 0.5, (40, 61)),
        (100, 0.95, (90, 100)),
        (200, 0.95, (184, 197)),
        (1000, 0.99, (983, 997)),
        (100, 0.99, (97, None)),
        (6, 0.5, (1, 6)),
        (5, 0.5, None),
    ],
)
def test_the_interval_of_a_percentile_is_between_order_statistics(n: int, p: float, ranks: object) -> None:
    assert stats.interval(range(1, n + 1), p) == ranks


@pytest.mark.parametrize("p", [0.5, 0.9])
@pytest.mark.parametrize("name", ["lognormal", "bimodal"])
def test_the_interval_covers_at_least_as_often_as_it_says(name: str, p: float) -> None:
    rng = np.random.default_rng(5)
    draw = bimodal_draw if name == "bimodal" else UNIMODAL[name]
    true = stats.percentile(draw(rng, 400_000), p)
    hits = 0
    for _ in range(300):
        low, high = stats.interval(draw(rng, 150), p) or (math.inf, None)
        hits += low <= true <= (math.inf if high is None else high)
    assert hits / 300 > 0.92


def test_the_effective_size_sees_through_autocorrelation() -> None:
    rng = np.random.default_rng(0)
    assert stats.effective_size(rng.normal(size=2000)) > 1800
    found = stats.effective_size(autocorrelated(rng, 4000, 0.8)) / 4000
    assert found == pytest.approx(0.2 / 1.8, rel=0.4)
    assert stats.effective_size([3.0] * 50) == 50


def test_a_drift_is_found_and_noise_is_none() -> None:
    rng = np.random.default_rng(1)
    drifting = 10 + 0.001 * np.arange(600) + rng.normal(0, 0.2, 600)
    assert stats.trend(drifting).p_value < 1e-6 and stats.trend(drifting).tau > 0
    assert stats.trend(drifting[::-1]).tau < 0
    alarms = sum(stats.trend(autocorrelated(rng, 1000, 0.5)).p_value < 0.05 for _ in range(100))
    assert alarms <= 14
    assert stats.trend([1.0] * 100) == stats.Trend(0.0, 1.0)


def test_a_hundred_thousand_samples_are_not_compared_in_pairs() -> None:
    import time

    samples = np.random.default_rng(2).lognormal(0, 0.3, 100_000)
    began = time.process_time()
    stats.summarize(samples)
    assert time.process_time() - began < 20  # ten billion pairs would take longer


@pytest.mark.parametrize("name", UNIMODAL)
@pytest.mark.parametrize("n", [60, 500])
def test_one_heap_is_not_taken_for_two(name: str, n: int) -> None:
    rng = np.random.default_rng(3)
    assert sum(stats.bimodal(UNIMODAL[name](rng, n)) is not None for _ in range(100)) <= 1


def test_two_heaps_are_told_apart() -> None:
    rng = np.random.default_rng(4)
    found = [stats.bimodal(bimodal_draw(rng, 500)) for _ in range(50)]
    modes = [m for m in found if m is not None]
    assert len(modes) >= 48
    assert modes[0].low == pytest.approx(10, abs=0.3) and modes[0].high == pytest.approx(12, abs=0.3)
    assert modes[0].share_high == pytest.approx(0.2, abs=0.06)
    assert 10.5 < modes[0].split < 11.8


def test_outliers_are_named_and_kept() -> None:
    samples = [1.0, 1.1, 0.9, 1.05, 9.0, 1.0, 0.95, 0.1]
    assert stats.outliers(samples) == (4,)
    assert stats.outliers([1.0] * 20 + [2.0]) == (20,)
    assert stats.outliers([1.0] * 20) == ()
    assert stats.summarize(samples).max == 9.0


def test_a_summary_says_only_what_the_sample_supports() -> None:
    rng = np.random.default_rng(6)
    small = stats.summarize(rng.lognormal(0, 0.1, 10))
    assert not small.percentiles and small.count == 10
    whole = to_dict(stats.summarize(rng.lognormal(0, 0.1, 700)), whole=True)
    assert list(whole["percentiles"]) == ["p50", "p90", "p95", "p99"]
    assert whole["percentiles"]["p50"]["value"] == whole["median"]
    assert whole["median_interval"][0] <= whole["median"] <= whole["median_interval"][1]
    assert whole["modes"] is None and set(whole["trend"]) == {"tau", "p_value"}


@pytest.mark.parametrize("samples", [[], [1.0, math.nan], [math.inf]])
def test_what_is_no_sample_is_refused(samples: list[float]) -> None:
    with pytest.raises(ConfigError):
        stats.summarize(samples)


def test_the_paired_tests_agree_with_hand_counts() -> None:
    assert stats.mcnemar(0, 0) == 1.0
    assert stats.mcnemar(5, 5) == 1.0
    assert stats.mcnemar(0, 6) == pytest.approx(2 / 64)
    assert stats.mcnemar(2, 10) == pytest.approx(2 * (1 + 12 + 66) / 4096)
    assert stats.holm([0.01, 0.04, 0.03]) == pytest.approx((0.03, 0.06, 0.06))
    low, high = stats.wilson(90, 100)
    assert (low, high) == pytest.approx((0.8256, 0.9448), abs=1e-4)
    assert stats.wilson(0, 10)[0] == 0.0


def test_paired_differences_have_an_interval_and_a_test() -> None:
    rng = np.random.default_rng(7)
    shifted = rng.normal(0.5, 1, 200)
    mean, low, high = stats.paired_bootstrap(shifted)
    assert low < mean < high and low > 0.2 and high < 0.8
    assert stats.sign_flip_test(shifted) < 0.001
    assert stats.sign_flip_test([0.0] * 20) == 1.0
    with pytest.raises(ConfigError):
        stats.paired_bootstrap([])
