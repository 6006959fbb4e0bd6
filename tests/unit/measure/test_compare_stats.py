"""The verdict of `compare`: false alarms, power, coverage (in small; bench/simulation.py in full), and its record."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest

from anynpu import schema
from anynpu.artifact import Made, Manifest, Step, seal
from anynpu.errors import AnyNpuError, ConfigError, DeviceError
from anynpu.measure import launch, paired
from anynpu.measure.compare import (
    Measured,
    Rules,
    SideInfo,
    as_launches,
    fewest_launches,
    judge_latency,
    record_of,
)
from anynpu.measure.significance import bootstrap_ratio, log_medians, permutation_test, student_quantile
from anynpu.tensors import TensorSpec

SIMULATIONS = 250


def launches(rng: np.random.Generator, count: int, spread: float, factor: float = 1.0) -> list[np.ndarray]:
    return [factor * math.exp(rng.normal(0, spread)) * rng.lognormal(0, 0.1, 60) for _ in range(count)]


@pytest.mark.parametrize("spread", [0.0, 0.02])
def test_no_difference_raises_an_alarm_as_rarely_as_the_level_says(spread: float) -> None:
    rng = np.random.default_rng(11)
    alarms = inside = 0
    for seed in range(SIMULATIONS):
        found = judge_latency(launches(rng, 5, spread), launches(rng, 5, spread), Rules(margin=0.0), seed)
        alarms += found.verdict != "no difference"
        inside += found.low <= 1 <= found.high
    # 5 % of 250 and three standard errors above; launches that vary must not be taken for a difference.
    assert alarms / SIMULATIONS <= 0.09
    assert 0.9 <= inside / SIMULATIONS <= 0.99


def test_pooled_samples_would_raise_false_alarms_where_launches_do_not() -> None:
    rng = np.random.default_rng(12)
    a, b = launches(rng, 5, 0.02), launches(rng, 5, 0.02, 1.02)
    split = [part for side in a for part in np.array_split(side, 20)], [p for s in b for p in np.array_split(s, 20)]
    assert permutation_test(*split) < permutation_test(a, b)


def test_a_planted_slowdown_of_three_per_cent_is_found() -> None:
    rng = np.random.default_rng(13)
    found = [judge_latency(launches(rng, 10, 0.01), launches(rng, 10, 0.01, 1.03), Rules()) for _ in range(60)]
    assert sum(f.verdict == "worse" for f in found) >= 45
    assert not any(f.verdict == "better" for f in found)
    assert judge_latency(launches(rng, 10, 0.01, 1.1), launches(rng, 10, 0.01), Rules()).verdict == "better"


def test_a_difference_below_the_margin_is_none() -> None:
    a = [[1.0 + i * 1e-5] * 9 for i in range(6)]
    b = [[1.004 + i * 1e-5] * 9 for i in range(6)]
    found = judge_latency(a, b, Rules(margin=0.01))
    assert found.p_value < 0.01 and found.verdict == "no difference" and found.equivalent
    assert judge_latency(a, b, Rules(margin=0.001)).verdict == "worse"


def test_the_least_launches_that_can_reach_a_level() -> None:
    assert [fewest_launches(0.05), fewest_launches(0.05, 2), fewest_launches(0.001)] == [4, 5, 7]
    apart = permutation_test([[1.0], [1.1], [1.2], [1.3]], [[2.0], [2.1], [2.2], [2.3]])
    assert apart == pytest.approx(2 / 70)


def test_students_quantiles_are_those_of_the_tables() -> None:
    for freedom, value in ((4, 2.776), (8, 2.306), (18, 2.101), (1000, 1.962)):
        assert student_quantile(0.975, freedom) == pytest.approx(value, rel=2e-3)


def test_one_launch_is_judged_by_its_parts_and_says_so() -> None:
    rng = np.random.default_rng(14)
    a, b = [rng.lognormal(0, 0.05, 200)], [rng.lognormal(0.1, 0.05, 200)]
    found = judge_latency(a, b, Rules())
    assert (found.replicates, found.verdict) == ("blocks", "worse")
    record = record_of(SideInfo("a"), SideInfo("b"), Rules(), measured=Measured(a, b))
    assert any("one launch" in note for note in record.notes)
    with pytest.raises(ConfigError, match="too few"):
        as_launches([[1.0, 2.0]])
    with pytest.raises(ConfigError, match="several launches"):
        judge_latency(a, [*b, *b], Rules())


@pytest.mark.parametrize("bad", [[], [[]], [[1.0, math.nan]], [[0.0, 1.0]], [[1.0], [-1.0]]])
def test_samples_that_are_no_times_are_refused(bad: list[list[float]]) -> None:
    with pytest.raises(ConfigError):
        log_medians(bad)


def test_the_interval_of_equal_launches_is_a_point() -> None:
    assert bootstrap_ratio([[2.0]] * 5, [[4.0]] * 5) == pytest.approx((2.0, 2.0, 2.0))


def test_the_record_is_json_and_corrects_for_two_metrics() -> None:
    rng = np.random.default_rng(15)
    scores = {"y": rng.normal(size=(120, 4))}
    labels = scores["y"].argmax(1)
    spoiled = {"y": scores["y"] + rng.normal(0, 2, (120, 4))}
    accuracy = paired.compare_accuracy("top1", {}, scores, spoiled, labels)
    measured = Measured(launches(rng, 5, 0.0), launches(rng, 5, 0.0, 0.8))
    record = record_of(SideInfo("a", "1", "f"), SideInfo("b", "2", "f"), Rules(), measured=measured, accuracy=accuracy)
    again = json.loads(json.dumps(schema.to_dict(record), allow_nan=False))
    assert again["latency"]["verdict"] == "better" and again["accuracy"]["verdict"] == "worse"
    assert again["verdict"] == "worse", "faster and less accurate is worse"
    assert again["accuracy"]["p_adjusted"] == 2 * again["accuracy"]["p_value"], "the smaller of two counts double"
    assert again["latency"]["ratio"]["low"] < 0.8 < again["latency"]["ratio"]["high"]
    other = record_of(SideInfo("a", "1", "f"), SideInfo("b", "2", "g"), Rules(), measured=measured)
    assert other.verdict == other.latency.verdict == "not comparable"


def test_a_broken_measurement_is_kept_and_not_judged() -> None:
    record = record_of(
        SideInfo("a"), SideInfo("b"), Rules(), measured=Measured([[1.0, 1.1]], []), failure="the device went away"
    )
    assert record.partial and record.verdict is None and record.latency.ratio is None
    assert record.latency.launches.a == ((1.0, 1.1),) and record.latency.summary.b is None


def test_paired_accuracy_by_form_of_the_labels() -> None:
    rng = np.random.default_rng(16)
    labels = rng.integers(0, 4, 200)
    a = {"y": np.eye(4)[labels] + rng.normal(0, 0.1, (200, 4))}
    assert paired.metric_of(labels, [TensorSpec("y", (1, 4))]) == "top1"
    same = paired.compare_accuracy("top1", {}, a, a, labels)
    assert (same.a, same.p_value, same.only_a_right) == (1.0, 1.0, 0)
    wrong = {"y": np.where(np.arange(200)[:, None] < 12, 1 - a["y"], a["y"])}
    assert paired.compare_accuracy("top1", {}, a, wrong, labels).p_value == pytest.approx(2 / 4096)
    truth = rng.normal(size=(200, 3))
    near, far = {"y": truth + 0.1}, {"y": truth + rng.normal(0, 0.3, truth.shape)}
    assert paired.metric_of(truth, [TensorSpec("y", (1, 3))]) == "mse"
    worse = paired.compare_accuracy("mse", {}, near, far, truth)
    assert worse.p_value < 0.01 and worse.gain < 0 < worse.difference[1]
    inputs = {"x": rng.normal(size=(200, 5))}
    anomalous = rng.integers(0, 2, 200)
    good = {"y": inputs["x"] + anomalous[:, None] * rng.normal(0, 1, (200, 5)) + rng.normal(0, 0.3, (200, 5))}
    noise = {"y": inputs["x"] + rng.normal(0, 1, (200, 5))}
    found = paired.compare_accuracy("auc_reconstruction", inputs, good, noise, anomalous)
    assert found.p_value < 0.01 and found.gain < 0
    with pytest.raises(ConfigError, match="do not tell how to score"):
        paired.metric_of(truth, [TensorSpec("y", (1, 4))])
    with pytest.raises(ConfigError, match="did you mean 'top1'"):
        paired.compare_accuracy("top-1", {}, a, a, labels)


def null_artifact(folder: Path) -> Path:
    folder.mkdir()
    (folder / "model").write_text("nothing\n")
    spec = TensorSpec("x", (1, 4), "float32")
    manifest = Manifest(format="null", main="model", inputs=(spec,), outputs=(spec,), fingerprint="f" * 64)
    seal(folder, manifest, Step("null"), Made("2025-01-01T00:00:00+00:00", 0.0))
    return folder


def test_launches_are_fresh_processes_in_turn(tmp_path: Path) -> None:
    a, b = (launch.Job(null_artifact(tmp_path / name), seconds=0.0, runs=7) for name in "ab")
    found = launch.interleave(a, b, 2)
    assert found.order == "ABBA" and found.failure is None
    assert [len(s) for s in (*found.a.launches, *found.b.launches)] == [7] * 4
    assert "null" in found.a.executed


def test_what_was_measured_before_a_failure_is_kept(tmp_path: Path) -> None:
    a, b = (launch.Job(null_artifact(tmp_path / name), seconds=0.0, runs=3) for name in "ab")

    def spoil(done: int, total: int) -> None:
        if done == 3:
            (a.artifact / "model").unlink()

    found = launch.interleave(a, b, 2, spoil)
    assert isinstance(found.failure, AnyNpuError) and "model" in found.failure.message
    assert (found.order, len(found.a.launches), len(found.b.launches)) == ("ABB", 1, 2)


class Dying:
    """A session whose device goes away in the middle."""

    what = "a device that dies"
    inputs = outputs = (TensorSpec("x", (1, 4), "float32"),)

    def __init__(self, wrong: bool) -> None:
        self.runs, self.wrong = 0, wrong

    def run(self, inputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        self.runs += 1
        if self.runs > 10_000:
            if self.wrong:
                return {"x": inputs["x"] + 1}
            raise DeviceError("the device went away", call="run")
        return {"x": inputs["x"]}

    def close(self) -> None:
        raise DeviceError("closing a device that is not there", call="close")


@pytest.mark.parametrize(("wrong", "words"), [(False, "went away"), (True, "another output x")])
def test_a_device_that_dies_leaves_its_samples(
    wrong: bool, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launch, "open_session", lambda artifact, device: Dying(wrong))
    monkeypatch.setattr(launch, "WARM_SECONDS", 0.0)
    monkeypatch.setattr(launch, "WARM_RUNS", 1)
    found = launch.launch(str(null_artifact(tmp_path / "a")), None, 60.0, 20_000)
    assert words in found["failure"] and 9000 < len(found["samples_ms"]) < 10_000
