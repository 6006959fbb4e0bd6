import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anynpu.errors import ConfigError, IntegrityError
from anynpu.quantize.calibration import Dataset
from anynpu.quantize.ranges import (
    BINS,
    METHODS,
    Histogram,
    Range,
    collect,
    entropy_candidates,
    entropy_range,
    mse_candidates,
    mse_range,
    percentile_range,
    quantization_for,
)

RNG = np.random.default_rng(7)


def histogram(values):
    values = np.asarray(values, np.float64)
    result = Histogram(float(values.min()), float(values.max()))
    for part in np.array_split(values, 3):
        result.add(part)
    return result


def data(values):
    return Dataset({"x": np.asarray(values, np.float32)}, None, "test")


def quantised(values, found, symmetric=False):
    q = quantization_for(found, "int8", symmetric)
    return q.dequantize(q.quantize(values, "int8"))


OUTLIERS = np.concatenate([RNG.normal(size=20000), [60.0, -45.0]])
RELU = np.maximum(RNG.normal(size=20000), 0.0)
SHAPES = {
    "normal": RNG.normal(size=20000),
    "outliers": OUTLIERS,
    "relu": RELU,
    "negative": -np.abs(RNG.normal(size=5000)),
    "offset": RNG.uniform(3.0, 4.0, size=5000),
}


@pytest.mark.parametrize("method", METHODS)
def test_streaming_equals_all_at_once(method):
    values = RNG.normal(size=(40, 6)).astype(np.float32)
    one = collect(lambda s: {"y": s["x"] * 3}, data(values), method)
    everything = collect(lambda s: {"y": values[None] * 3}, data(values[:1]), method)
    assert one["y"].min == pytest.approx(everything["y"].min, rel=1e-6)
    assert one["y"].max == pytest.approx(everything["y"].max, rel=1e-6)


def test_minmax_keeps_the_one_rare_extreme():
    values = np.zeros((50, 4), np.float32)
    values[3, 2], values[40, 0] = -7.0, 9.0
    assert collect(lambda s: {"y": s["x"]}, data(values), "minmax") == {"y": Range(-7.0, 9.0)}


def test_passes_and_progress():
    calls, seen = [], []

    def run(sample):
        calls.append(1)
        return {"y": sample["x"], "ids": np.array([1, 2])}

    found = collect(run, data(RNG.normal(size=(5, 3))), "mse", progress=lambda done, total: seen.append((done, total)))
    assert len(calls) == 10 and seen[0] == (1, 10) and seen[-1] == (10, 10)
    assert set(found) == {"y"}, "integer tensors have no range"


@pytest.mark.parametrize("kind", SHAPES)
@pytest.mark.parametrize("percentile", [99.0, 99.9, 100.0])
def test_percentile_matches_numpy(kind, percentile):
    values = SHAPES[kind]
    found = percentile_range(histogram(values), percentile)
    width = (values.max() - values.min()) / BINS
    outside = 100 - percentile
    below = outside / 2 if values.min() < 0 < values.max() else (outside if values.min() < 0 else 0)
    # Up to one order statistic either side, and the width of a bin.
    one, above = 100 / len(values), 100 - (outside - below)
    lows = np.percentile(values, [max(below - one, 0), below + one], method="nearest")
    highs = np.percentile(values, [above - one, min(above + one, 100)], method="nearest")
    assert lows[0] - width <= found.min <= lows[1] + width
    assert highs[0] - width <= found.max <= highs[1] + width


@pytest.mark.parametrize("symmetric", [False, True])
@pytest.mark.parametrize("kind", SHAPES)
def test_mse_is_the_brute_force_optimum(kind, symmetric):
    values = SHAPES[kind]
    hist = histogram(values)
    found = mse_range(hist, 8, symmetric)

    def loss(low, high):
        return float(np.mean((values - quantised(values, Range(low, high), symmetric)) ** 2))

    best = min(loss(low, high) for low, high in mse_candidates(hist, symmetric)[::3])
    assert loss(found.min, found.max) <= best * 1.05 + 1e-12


def test_mse_clips_outliers_at_8_bits_but_less_at_16():
    hist = histogram(OUTLIERS)
    eight, sixteen = mse_range(hist, 8, True), mse_range(hist, 16, True)
    assert eight.max < 58 and sixteen.max > eight.max
    mse = [np.mean((OUTLIERS - quantised(OUTLIERS, r, True)) ** 2) for r in (eight, Range(-45.0, 60.0))]
    assert mse[0] < mse[1]


def brute_divergence(values, counts, low, high):
    inside = [(v, c) for v, c in zip(values, counts, strict=True) if low <= v <= high]
    reference = [c for _, c in inside]
    reference[0] += sum(c for v, c in zip(values, counts, strict=True) if v < low)
    reference[-1] += sum(c for v, c in zip(values, counts, strict=True) if v > high)
    levels = [round((v - inside[0][0]) / ((high - low) / 255)) for v, _ in inside]
    total, kept, result = sum(reference), sum(c for _, c in inside), 0.0
    for level, count in zip(levels, reference, strict=True):
        members = [c for other, (_, c) in zip(levels, inside, strict=True) if other == level]
        result += count / total * np.log((count / total) / (sum(members) / len(members) / kept))
    return result - (len(levels) - len(set(levels))) / (2 * total)


def test_entropy_is_the_brute_force_optimum():
    values = np.concatenate([RNG.normal(size=20000), [9.0, -8.0, 9.5]])
    hist = histogram(values)
    points, counts = hist.points()
    candidates = [c for c in entropy_candidates(hist)[::8] if np.mean((values < c[0]) | (values > c[1])) < 9e-4]
    divergences = [brute_divergence(points.tolist(), counts.tolist(), *c) for c in candidates]
    found = entropy_range(hist, 8, False)
    assert brute_divergence(points.tolist(), counts.tolist(), found.min, found.max) <= min(divergences) + 1e-9


def test_entropy_needs_values_to_speak():
    few = RNG.normal(size=500)
    assert entropy_range(histogram(few), 8, False) == Range(float(few.min()), float(few.max()))
    many = RNG.normal(size=60000)
    found = entropy_range(histogram(many), 8, False)
    assert np.mean((many < found.min) | (many > found.max)) < 2e-3


def test_entropy_keeps_data_far_from_zero():
    offset = RNG.normal(0.5, 0.05, size=60000)
    assert entropy_range(histogram(offset), 8, False).max > 0.6


def test_entropy_clips_far_outliers_and_ignores_zeros():
    assert entropy_range(histogram(OUTLIERS), 8, False).max < 40
    positive = RELU[RELU > 0]
    more_zeros = np.concatenate([RELU, np.zeros(100000)])
    assert entropy_range(histogram(more_zeros), 8, False) == entropy_range(histogram(RELU), 8, False)
    assert entropy_range(histogram(RELU), 8, False).max > np.percentile(positive, 90)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("constant", [0.0, 5.0, -5.0, 1e-30, 3e38])
def test_constants_are_exact(method, constant):
    found = collect(lambda s: {"y": s["x"]}, data(np.full((4, 3), constant)), method)["y"]
    for symmetric in (False, True):
        back = quantised(np.float32(constant), found, symmetric)
        assert back == pytest.approx(np.float32(constant), rel=1e-5, abs=1e-29)


def test_single_sided_ranges_use_every_step():
    q = quantization_for(Range(2.0, 6.0), "int8", False)
    assert q.zero_point == (-128,) and q.scale[0] == pytest.approx(6 / 255)
    q = quantization_for(Range(-6.0, -2.0), "uint8", False)
    assert q.zero_point == (255,) and q.scale[0] == pytest.approx(6 / 255)
    assert quantization_for(Range(-1.0, 3.0), "int16", True).zero_point == (0,)
    assert quantization_for(Range(-1.0, 3.0), "uint8", True).zero_point == (128,)


@settings(max_examples=200, deadline=None)
@given(
    st.floats(-1e30, 1e30),
    st.floats(0, 1e30),
    st.sampled_from(["int8", "uint8", "int16"]),
    st.booleans(),
)
def test_zero_is_exact_and_ends_are_near(low, size, dtype, symmetric):
    q = quantization_for(Range(low, low + size), dtype, symmetric)
    assert q.dequantize(q.quantize(np.zeros(1), dtype))[0] == 0.0
    for end in (low, low + size):
        assert abs(q.dequantize(q.quantize(np.array([end]), dtype))[0] - end) <= q.scale[0] * 1.01 + abs(end) * 1e-5


def test_bad_values_are_named():
    values = np.ones((3, 2), np.float32)
    values[2, 1] = np.nan
    with pytest.raises(IntegrityError, match=r"tensor y .* sample 2"):
        collect(lambda s: {"y": s["x"]}, data(values), "minmax")
    with pytest.raises(ConfigError, match="no such range method"):
        collect(lambda s: s, data(np.ones((1, 1))), "magic")
    with pytest.raises(ConfigError, match="percentile"):
        collect(lambda s: s, data(np.ones((1, 1))), "percentile", percentile=0.5)
    with pytest.raises(ConfigError):
        Range(1.0, 0.0)
