"""What the detector finds and what it leaves alone, on fleets that it was not written on."""

from __future__ import annotations

import numpy as np
import pytest

from anynpu.apps.watch import methods, state
from anynpu.apps.watch.calibration import conformal
from anynpu.apps.watch.detector import Detector
from anynpu.apps.watch.explain import explained
from anynpu.apps.watch.registry import Registry
from anynpu.apps.watch.replay import Alarm, belongs, incidents, score, wilson
from anynpu.apps.watch.trace import HostTrace, Label, Trace
from anynpu.testing import traces

DAY_S = 86_400.0
WEEK_S = 7 * DAY_S


def course(days: float, interval_s: float = 300.0, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Returns times and a CPU with a day, a weekend and noise; not made by the generator of traces."""
    rng = np.random.default_rng(seed)
    time_s = traces.START_S + np.arange(int(days * DAY_S / interval_s)) * interval_s
    weekend = np.where((time_s - traces.START_S) // DAY_S % 7 >= 5, 0.4, 1.0)
    wave = 30 + 20 * weekend * np.sin(2 * np.pi * time_s / DAY_S)
    return time_s, np.clip(wave + rng.normal(0, 1.5, time_s.size), 0, 100)


def watched(values: np.ndarray, time_s: np.ndarray, stamped_s: np.ndarray | None = None, name: str = "cpu_percent"):
    """Returns what the detector says of one series, and the detector."""
    stamped = time_s if stamped_s is None else stamped_s
    trace = Trace((name,), [HostTrace("h", time_s, stamped, values[:, None].astype(float))])
    registry = Registry()
    detector = Detector(registry, 0.5, trace.interval_s)
    changes = []
    for batch in trace.batches(registry):
        changes += [(a.test, a.opened_s, a.ended_s, a.ending, explained(detector, a)) for a in detector.update(batch)]
    return changes, detector


@pytest.fixture(scope="module")
def fleet():
    """Eight machines, six weeks, a sample every two minutes."""
    return traces.fleet(range(500, 508), interval_s=120.0)


def test_a_fleet_with_faults(fleet):
    from_s = traces.START_S + 4 * WEEK_S
    result = score(fleet, methods.robust(fleet, 0.5), from_s)
    plain = score(fleet, methods.three_sigma(fleet, from_s), from_s)
    assert result.recall.value >= 0.9
    assert result.false_alarms_a_host_week.value <= 2.0
    assert plain.false_alarms_a_host_week.value > 5 * result.false_alarms_a_host_week.value
    assert {fault.fault for fault in result.faults} == set(traces.FAULTS)


def test_normal_weeks_with_a_day_and_a_weekend_raise_nothing():
    time_s, values = course(42)
    changes, _ = watched(values, time_s)
    began = [change for change in changes if change[2] is None and change[1] > time_s[0] + 3 * WEEK_S]
    assert len(began) <= 2  # three weeks at half a false alarm each


def faulty(fault, days=36, at_day=32.4, length_s=7200.0):
    time_s, values = course(days)
    begin = int(np.searchsorted(time_s, traces.START_S + at_day * DAY_S))
    span = slice(begin, begin + int(length_s / 300))
    stamped = time_s.copy()
    keep = np.ones(time_s.size, bool)
    fault(values, span, stamped, keep)
    changes, detector = watched(values[keep], time_s[keep], stamped[keep])
    late = [change for change in changes if change[1] >= time_s[begin] - 1]
    return late, float(time_s[begin]), detector


def test_a_spike_is_told_at_once_and_is_over_when_it_is_over():
    def spike(values, span, *_):
        values[span] = 97

    changes, began_s, _ = faulty(spike, length_s=3600)
    test, opened_s, *_, told = changes[0]
    assert test == "sample" and opened_s - began_s <= 600
    assert told.kind == "spike" and told.value == pytest.approx(97, abs=1) and "cpu_percent 97" in told.text
    assert changes[-1][3] == "is normal again"


def test_a_level_within_the_range_of_the_day_is_unusual_for_the_hour():
    def night_as_day(values, span, *_):
        values[span] = 49.0 + np.random.default_rng(1).normal(0, 1.5, span.stop - span.start)

    changes, _, _ = faulty(night_as_day, at_day=32.68, length_s=4 * 3600)
    assert {change[4].kind for change in changes if change[2] is None} <= {"season", "spike"}
    assert changes


def test_a_leak_is_a_drift_and_named_so():
    def leak(values, span, *_):
        values[span] += np.linspace(0, 45, span.stop - span.start)

    changes, began_s, _ = faulty(leak, length_s=20 * 3600)
    assert changes[0][1] - began_s < 10 * 3600


def test_a_stuck_sensor_is_told_and_ends():
    def stuck(values, span, *_):
        values[span] = values[span.start]

    changes, began_s, _ = faulty(stuck, length_s=8 * 3600)
    stuck_ones = [change for change in changes if change[0] == "still"]
    assert stuck_ones and stuck_ones[0][1] - began_s < 4 * 3600  # three times the longest rest of ten samples
    assert "usually changes within" in stuck_ones[0][4].text
    assert "is normal again" in stuck_ones[-1][3]


def test_what_a_series_does_again_and_again_is_a_habit_and_not_a_fault():
    time_s, values = course(42)
    rng = np.random.default_rng(3)
    for begin in (rng.uniform(4, 41.5, 24) * 288).astype(int):  # a job of twenty minutes, at no fixed hour
        values[begin : begin + 4] = 95
    changes, _ = watched(values, time_s)
    began = [change[1] for change in changes if change[2] is None and change[0] in ("sample", "quarter")]
    assert began and [when for when in began if when > time_s[0] + 4 * WEEK_S] == []


def test_the_load_after_a_reboot_is_not_a_spike():
    def reboot(values, span, stamped, keep):
        keep[span.start - 4 : span.start] = False
        values[span] = 97

    changes, _, _ = faulty(reboot, length_s=600)
    assert [change for change in changes if change[0] in ("sample", "quarter")] == []


def test_silence_and_a_clock_that_jumps():
    def gone(values, span, stamped, keep):
        keep[span] = False

    def jump(values, span, stamped, keep):
        stamped[span] -= 3600

    changes, _, _ = faulty(gone)
    assert [(change[0], change[3]) for change in changes][:2] == [("missing", ""), ("missing", "reports again")]
    changes, _, _ = faulty(jump)
    assert [(change[0], change[3]) for change in changes] == [("clock", ""), ("clock", "the clock is right again")]
    assert "1 h behind" in changes[0][4].text or "60 min behind" in changes[0][4].text


def test_an_anomaly_is_kept_out_of_the_baseline_and_a_new_level_is_accepted_after_three_days():
    time_s, values = course(40)
    begin = int(np.searchsorted(time_s, traces.START_S + 30 * DAY_S))
    values[begin:] += 35
    changes, detector = watched(values, time_s)
    late = [change for change in changes if change[1] >= time_s[begin] - 1 and change[2] is not None]
    assert "counts as normal now" in late[0][3]
    assert late[0][2] - time_s[begin] == pytest.approx(3 * DAY_S, abs=4 * 3600)
    assert detector.baselines.level[0] == pytest.approx(65, abs=4)
    _, detector = watched(values[: begin + 288], time_s[: begin + 288])
    assert detector.baselines.level[0] == pytest.approx(30, abs=3)  # a day of it changed nothing


def test_what_was_learnt_outlives_the_process(tmp_path, fleet):
    small = Trace(fleet.metrics, fleet.hosts[:2], [])
    registry = Registry()
    detector = Detector(registry, 0.5, small.interval_s)
    batches = list(small.batches(registry))
    half = len(batches) * 3 // 4
    for batch in batches[:half]:
        detector.update(batch)
    state.save(detector, tmp_path / "state.npz", 17)
    other = Detector(Registry(), 0.5, small.interval_s)
    assert state.load(other, tmp_path / "state.npz") == 17
    first = [vars(a) for batch in batches[half:] for a in detector.update(batch)]
    second = [vars(a) for batch in batches[half:] for a in other.update(batch)]
    assert first == second
    (tmp_path / "bad.npz").write_bytes((tmp_path / "state.npz").read_bytes()[:5000])
    with pytest.raises(Exception, match="not what a detector wrote"):
        state.load(Detector(Registry()), tmp_path / "bad.npz")


def test_a_conformal_threshold_is_exceeded_as_often_as_it_says():
    rng = np.random.default_rng(4)
    over = []
    for _ in range(300):
        scores = rng.pareto(2.5, 400)
        over.append(rng.pareto(2.5, 200) > conformal(scores.astype(np.float32), 0.02))
    assert np.mean(over) == pytest.approx(0.02, abs=0.004)
    assert conformal(np.arange(10, dtype=np.float32), 0.001) > 9  # beyond what was ever seen


def test_scores_count_hosts_metrics_and_hours():
    label = Label("a", "spike", ("cpu_percent",), 1000.0, 2000.0)
    assert belongs(Alarm("a", 1500, "cpu_percent", "sample"), label, 30)
    assert not belongs(Alarm("b", 1500, "cpu_percent", "sample"), label, 30)
    assert not belongs(Alarm("a", 1500, "load1", "sample"), label, 30)
    assert not belongs(Alarm("a", 1500, "", "missing"), label, 30)
    assert belongs(Alarm("a", 1500), label, 30)
    assert not belongs(Alarm("a", 9000), label, 30)
    alarms = [Alarm("a", t) for t in (0, 1800, 5000, 20_000)]
    assert [alarm.time_s for alarm in incidents(alarms)] == [0, 20_000]
    assert wilson(95, 100).low == pytest.approx(0.888, abs=0.001)
