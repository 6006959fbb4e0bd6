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


def followed(detector: Detector, trace: Trace):
    """Returns what a detector says of a trace: test, beginning, end, how it ended, explanation, metric."""
    changes = []
    for batch in trace.batches(detector.registry):
        for each in detector.update(batch):
            metric = "" if each.series is None else detector.registry.metrics[each.series]
            changes.append((each.test, each.opened_s, each.ended_s, each.ending, explained(detector, each), metric))
    return changes


def of_one_host(values: dict[str, np.ndarray], time_s: np.ndarray, stamped_s: np.ndarray | None = None) -> Trace:
    stamped = time_s if stamped_s is None else stamped_s
    return Trace(tuple(values), [HostTrace("h", time_s, stamped, np.stack(list(values.values()), 1).astype(float))])


@pytest.fixture(scope="module")
def learnt(tmp_path_factory):
    """What a detector learns of 32 days of a CPU, in a file: every fault below comes after these; and what it said."""
    time_s, values = course(32)
    trace = of_one_host({"cpu_percent": values}, time_s)
    detector = Detector(Registry(), 0.5, trace.interval_s)
    changes = followed(detector, trace)
    path = tmp_path_factory.mktemp("learnt") / "state.npz"
    state.save(detector, path, 0)
    return path, changes


@pytest.fixture(scope="module")
def fleet():
    """Eight machines, six weeks, a sample every five minutes."""
    return traces.fleet(range(500, 508), interval_s=300.0)


def test_a_fleet_with_faults(fleet):
    from_s = traces.START_S + 4 * WEEK_S
    result = score(fleet, methods.robust(fleet, 0.5), from_s)
    plain = score(fleet, methods.three_sigma(fleet, from_s), from_s)
    assert result.recall.value >= 0.9
    assert result.false_alarms_a_host_week.value <= 2.0
    assert plain.false_alarms_a_host_week.value > 5 * result.false_alarms_a_host_week.value
    assert {fault.fault for fault in result.faults} == set(traces.FAULTS)


def test_normal_weeks_with_a_day_and_a_weekend_raise_nothing(learnt):
    began = [change for change in learnt[1] if change[2] is None and change[1] > traces.START_S + 2.5 * WEEK_S]
    assert len(began) <= 1  # two weeks at half a false alarm each


@pytest.fixture
def faulty(learnt):
    """Returns what is said of a fault that comes after the weeks of learning, and when it began."""

    def with_fault(fault, at_day=32.4, length_s=7200.0):
        time_s, values = course(36)
        begin = int(np.searchsorted(time_s, traces.START_S + at_day * DAY_S))
        stamped, keep = time_s.copy(), time_s >= traces.START_S + 32 * DAY_S
        fault(values, slice(begin, begin + int(length_s / 300)), stamped, keep)
        detector = Detector(Registry(), 0.5, 300.0)
        state.load(detector, learnt[0])
        changes = followed(detector, of_one_host({"cpu_percent": values[keep]}, time_s[keep], stamped[keep]))
        return [change for change in changes if change[1] >= time_s[begin] - 1], float(time_s[begin])

    return with_fault


def test_a_spike_is_told_at_once_and_is_over_when_it_is_over(faulty):
    def spike(values, span, *_):
        values[span] = 97

    changes, began_s = faulty(spike, length_s=3600)
    test, opened_s, *_, told, _ = changes[0]
    assert test == "sample" and opened_s - began_s <= 600
    assert told.kind == "spike" and told.value == pytest.approx(97, abs=1) and "cpu_percent 97" in told.text
    assert changes[-1][3] == "is normal again"


def test_a_level_within_the_range_of_the_day_is_unusual_for_the_hour(faulty):
    def night_as_day(values, span, *_):
        values[span] = 49.0 + np.random.default_rng(1).normal(0, 1.5, span.stop - span.start)

    changes, _ = faulty(night_as_day, at_day=32.68, length_s=4 * 3600)
    assert {change[4].kind for change in changes if change[2] is None} <= {"season", "spike"}
    assert changes


def test_a_leak_is_a_drift_and_named_so(faulty):
    def leak(values, span, *_):
        values[span] += np.linspace(0, 45, span.stop - span.start)

    changes, began_s = faulty(leak, length_s=20 * 3600)
    assert changes[0][1] - began_s < 10 * 3600


def test_a_stuck_sensor_is_told_and_ends(faulty):
    def stuck(values, span, *_):
        values[span] = values[span.start]

    changes, began_s = faulty(stuck, length_s=8 * 3600)
    stuck_ones = [change for change in changes if change[0] == "still"]
    assert stuck_ones and stuck_ones[0][1] - began_s < 4 * 3600  # three times the longest rest of ten samples
    assert "usually changes within" in stuck_ones[0][4].text
    assert "is normal again" in stuck_ones[-1][3]


@pytest.fixture(scope="module")
def six_weeks():
    """Six weeks of three metrics of one host: with jobs at no fixed hour, with a weekly job through midnight, with a
    level that comes to stay."""
    rng, (time_s, plain) = np.random.default_rng(3), course(42)
    jobs, weekly, stays = (plain.copy() for _ in range(3))
    for begin in (rng.uniform(4, 41.5, 24) * 288).astype(int):  # twenty minutes
        jobs[begin : begin + 4] = 95
    for week in range(6):  # two hours between Saturday and Sunday
        begin = int(((week * 7 + 5) * DAY_S + 23 * 3600 + rng.uniform(0, 300)) / 300)
        weekly[begin : begin + 24] = 95
    stays[30 * 288 :] += 35
    values = {"cpu_percent": jobs, "npu_percent": weekly, "swap_percent": stays}
    whole = of_one_host(values, time_s)
    detector = Detector(Registry(), 0.5, whole.interval_s)
    changes, levels = [], []
    for part in np.split(np.arange(time_s.size), [31 * 288]):
        host = HostTrace("h", time_s[part], time_s[part], whole.hosts[0].values[part])
        changes += followed(detector, Trace(whole.metrics, [host]))
        levels.append(float(detector.baselines.level[2]))
    return changes, levels


def after(changes, metric, day):
    """Returns when anomalies of a metric began after a day."""
    began = [each[1] for each in changes if each[5] == metric and each[2] is None]
    assert began  # it was noticed at first
    return [when for when in began if when >= traces.START_S + day * DAY_S]


def test_what_a_series_does_again_and_again_is_a_habit_and_not_a_fault(six_weeks):
    assert after(six_weeks[0], "cpu_percent", 28) == []


def test_a_weekly_job_through_midnight_is_a_habit(six_weeks):
    assert after(six_weeks[0], "npu_percent", 28) == []


def test_the_load_after_a_reboot_is_not_a_spike(faulty):
    def reboot(values, span, stamped, keep):
        keep[span.start - 4 : span.start] = False
        values[span] = 97

    changes, _ = faulty(reboot, length_s=600)
    assert [change for change in changes if change[0] in ("sample", "quarter")] == []


def test_silence_and_a_clock_that_jumps(faulty):
    def gone(values, span, stamped, keep):
        keep[span] = False

    def jump(values, span, stamped, keep):
        stamped[span] -= 3600

    changes, _ = faulty(gone)
    assert [(change[0], change[3]) for change in changes][:2] == [("missing", ""), ("missing", "reports again")]
    changes, _ = faulty(jump)
    assert [(change[0], change[3]) for change in changes] == [("clock", ""), ("clock", "the clock is right again")]
    assert "1 h behind" in changes[0][4].text or "60 min behind" in changes[0][4].text


def test_an_anomaly_is_kept_out_of_the_baseline_and_a_new_level_is_accepted_after_three_days(six_weeks):
    changes, (after_a_day, at_the_end) = six_weeks
    began_s = traces.START_S + 30 * DAY_S
    ends = [each for each in changes if each[5] == "swap_percent" and each[1] >= began_s - 1 and each[2] is not None]
    assert "counts as normal now" in ends[0][3]
    assert ends[0][2] - began_s == pytest.approx(3 * DAY_S, abs=4 * 3600)
    assert after_a_day == pytest.approx(30, abs=3)
    assert at_the_end == pytest.approx(65, abs=4)


def test_what_was_learnt_outlives_the_process(tmp_path, fleet):
    registry = Registry()
    detector = Detector(registry, 0.5, fleet.interval_s)
    hosts = [HostTrace(each.name, each.received_s, each.stamped_s, each.values.copy()) for each in fleet.hosts[:2]]
    hosts[0].values[5000:5012, 0] = 99.0
    batches = list(Trace(fleet.metrics, hosts, []).batches(registry))
    for batch in batches[:1600]:
        detector.update(batch)
    state.save(detector, tmp_path / "state.npz", 17)
    other = Detector(Registry(), 0.5, fleet.interval_s)
    assert state.load(other, tmp_path / "state.npz") == 17
    later = batches[1600:1800]
    first = [vars(a) for batch in later for a in detector.update(batch)]
    second = [vars(a) for batch in later for a in other.update(batch)]
    assert first and first == second
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
