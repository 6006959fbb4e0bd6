"""Figures of a bench and of an eval that would be wrong without a word."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import time
from types import SimpleNamespace

import numpy as np
import pytest

from anynpu.errors import AccuracyError, ConfigError, DeviceError
from anynpu.measure import evaluate, host, outcome
from anynpu.measure.energy import CsvMeter, Rapl, Reading, Sensors, account, read_csv
from anynpu.measure.load import Runner, Settings, Trace
from anynpu.measure.significance import bca
from anynpu.measure.subject import Infer
from anynpu.records.bench import BenchRecord, BenchSettings, Late, Queue
from anynpu.records.eval import ClassFigures, EvalRecord
from anynpu.records.host import Used
from anynpu.records.shared import Figure
from anynpu.schema import to_dict
from anynpu.tasks import yolo
from anynpu.tensors import TensorSpec

X = TensorSpec("x", (1, 4))
INPUT = {"x": np.zeros((1, 4), np.float32)}
MS = 1_000_000


class Model:
    """A session that does what a function does."""

    name, formats, rank, what = "model", ("model",), 0, "a model for tests"
    inputs = outputs = (X,)

    def __init__(self, work=lambda: None, **more):
        self.work = work
        self.__dict__.update(more)

    def run(self, inputs):
        self.work()
        return {"x": inputs["x"]}

    def close(self):
        return


def measured(model, **settings):
    """Returns the record of a measurement."""
    runner = Runner(lambda: Infer(model, INPUT), Settings(**{"warm_up": 1, **settings}))
    return to_dict(outcome.to_record(runner.run()))


def by_hand(gaps, calls=None):
    """Returns a trace of calls of a millisecond, each after a gap."""
    trace, at = Trace(), 0
    for number, gap in enumerate(gaps):
        at += gap
        trace.add(at, at + (calls[number] if calls else MS), {"run": MS})
        at += calls[number] if calls else MS
    return trace


def test_no_counter_is_read_between_calls(monkeypatch):
    calls = []
    real = resource.getrusage
    monkeypatch.setattr(resource, "getrusage", lambda who: calls.append(who) or real(who))
    record = measured(Model(), runs=2000)
    # At both ends, and with a look at the machine every tenth of a second.
    assert record["runs"] >= 2000 // max(1, record["latency"]["batch"])
    assert len(calls) < 20 + 20 * record["host"]["wall_s"]


def test_throughput_is_what_the_clock_on_the_wall_saw():
    trace = by_hand([0] + [9 * MS] * 99)  # calls of 1 ms, every 10 ms
    found = outcome._throughput(trace)
    assert found.per_s == pytest.approx(100 / 0.991) and found.wall_s == pytest.approx(0.991)


def test_pauses_between_calls_are_told():
    paused = outcome._throughput(by_hand([0] + [10_000] * 90 + [50 * MS] * 9))
    (told,) = outcome._of_pauses(paused)
    assert "kept waiting between calls for 0.45 of" in told and "the latencies do not" in told
    assert outcome._of_pauses(outcome._throughput(by_hand([10_000] * 100))) == []


BUSY = "import time\nwhile time.process_time() < 0.4: pass\nprint(1, flush=True)\ninput()\n"


def test_a_worker_process_is_the_models_own():
    watch = host.Watch()
    watch.start()
    with subprocess.Popen([sys.executable, "-c", BUSY], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as worker:
        worker.stdout.readline()
        used = watch.stop()
        worker.communicate(b"\n")
    assert used.worker_processes >= 1 and used.worker_cpu_s > 0.35
    assert used.cpu_user_s + used.cpu_system_s >= used.worker_cpu_s
    assert used.worker_peak_rss_bytes > 1 << 20 and used.peak_rss_bytes > used.worker_peak_rss_bytes


def test_a_worker_that_has_ended_is_counted():
    watch = host.Watch()
    watch.start()
    subprocess.run([sys.executable, "-c", BUSY], input=b"\n", stdout=subprocess.DEVNULL, check=True)
    assert watch.stop().worker_cpu_s > 0.35


def machine(root, steal=0, throttled=0, busy=100):
    """Describes a machine in a folder."""
    for name, text in {
        "proc/stat": f"cpu {busy} 0 0 0 0 0 0 {steal} 0 0",
        "proc/self/cgroup": "0::/box",
        "sys/fs/cgroup/box/cpu.stat": f"usage_usec 5\nthrottled_usec {throttled}",
    }.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text + "\n")


def of_host(**used):
    whole = {"other_cores_used": 0.0, "stolen_cores": 0.0, "cores_used": 1.0, "wall_s": 1.0, **used}
    result = SimpleNamespace(used=Used(**whole), trace=by_hand([0, 0]), reading=None, settings=Settings())
    return outcome._of_host(result)


def test_time_that_the_host_of_a_virtual_machine_took(tmp_path):
    machine(tmp_path)
    watch = host.Watch(tmp_path)
    watch.start()
    machine(tmp_path, steal=10 * os.sysconf("SC_CLK_TCK"))
    used = watch.stop()
    assert used.stolen_cores * used.wall_s == pytest.approx(10)
    assert "steal" in of_host(stolen_cores=0.5)[0] and of_host(stolen_cores=0.01) == []


def test_time_that_a_container_was_stopped_for(tmp_path):
    machine(tmp_path)
    watch = host.Watch(tmp_path)
    watch.start()
    machine(tmp_path, throttled=2_500_000)
    assert watch.stop().held_back_s == pytest.approx(2.5)
    assert "CPU limit of this container" in of_host(held_back_s=0.5)[0]


def test_a_machine_that_slept():
    assert "slept for 12.0 s" in of_host(asleep_s=12.0)[0] and of_host(asleep_s=0.01) == []


def test_an_overload_in_which_every_query_is_answered_late(monkeypatch):
    record = measured(Model(lambda: time.sleep(0.02)), scenario="server", qps=400.0, runs=40)
    assert record["queue"]["unanswered"] == 0 and record["throughput"]["per_s"] <= 50
    assert any("queries a second came" in line for line in record["warnings"])
    # Coordinated omission: the wait in the queue is part of a latency, so the last one waited for most of the run.
    assert max(record["latency"]["samples"]) > 400


def test_the_percentiles_of_what_was_answered_are_called_too_low():
    queue = Queue(queries=9, unanswered=4, arrived_per_s=9.0, late_ms=Late(median=0.0, max=0.0))
    record = BenchRecord(schema_version=2, kind="bench", queue=queue, settings=BenchSettings(qps=9.0))
    (told,) = outcome._of_queue(record)
    assert "4 of 9 queries were not answered" in told and "too low" in told


HEAD = "time,watts\n"


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        (HEAD + "0,1\n1,-5\n2,1\n", "row 3 has -5 under watts"),
        (HEAD + "0,1\n1,inf\n2,1\n", "row 3 has no number under watts"),
        (HEAD + "0,1\n1,NaN\n2,1\n", "row 3 has no number under watts"),
        (HEAD + "0,1\n1,1e308\n2,1e308\n", "beyond all measure"),
        (HEAD + "0,0\n1,0\n2,0\n", "every power is zero"),
        (HEAD + "0,1\n1,2026-01-01\n2,1\n", "row 3 has no number under watts"),
        ("time,volts,amps\n0,-5,-1\n1,-5,-1\n", "row 2 has -5 under volts"),
        ("time,volts,amps\n0,5,1\n1,5,-1\n", "row 3 has -1 under amps"),
    ],
    ids=["negative", "infinite", "nan", "overflow", "zero", "date", "both-negative", "negative-current"],
)
def test_powers_that_are_none(tmp_path, rows, words):
    (tmp_path / "m.csv").write_text(rows)
    with pytest.raises(ConfigError, match=words):
        CsvMeter(tmp_path / "m.csv")


def test_the_noise_of_a_meters_zero_is_kept(tmp_path):
    (tmp_path / "m.csv").write_text(HEAD + "0,2\n1,-0.0001\n2,2\n")
    assert read_csv(tmp_path / "m.csv")[1].tolist() == [2, -0.0001, 2]


@pytest.mark.parametrize("text", ["-1000000", "nan", "inf", "0"])
def test_a_power_sensor_that_shows_no_power(tmp_path, text):
    (tmp_path / "power1_input").write_text(text)
    meter = Sensors([(tmp_path / "power1_input",)], "ina219", rate_hz=1000)
    meter.start()
    with pytest.raises(DeviceError, match="ina219"):
        meter.stop()


def counter(root, uj, most):
    (root / "name").write_text("package-0")
    (root / "next").write_text(str(uj))
    (root / "next").replace(root / "energy_uj")  # whole at any time, as a file of /sys is
    (root / "max_energy_range_uj").write_text(str(most))


def test_an_energy_counter_that_runs_over_twice(tmp_path):
    counter(tmp_path, 9_000_000, 10_000_000)
    meter = Rapl([tmp_path], every_s=0.01)
    meter.start()
    for uj in (1_000_000, 9_500_000, 2_000_000):
        counter(tmp_path, uj, 10_000_000)
        deadline = time.monotonic() + 10
        while meter._last != [uj] and time.monotonic() < deadline:
            time.sleep(0.005)
    assert meter.stop().joules == pytest.approx(13.0)


@pytest.mark.parametrize(
    ("last", "words"), [(5, "went back"), (9_000_000, "did not move"), ("nan", "no longer be read")]
)
def test_an_energy_counter_that_cannot_be_believed(tmp_path, last, words):
    counter(tmp_path, 9_000_000, 0)
    meter = Rapl([tmp_path])
    meter.start()
    counter(tmp_path, last, 0)
    with pytest.raises(DeviceError, match=words):
        meter.stop()


def test_a_clock_that_is_set_while_a_meter_runs(tmp_path, monkeypatch):
    (tmp_path / "m.csv").write_text(HEAD + "0,1\n9e9,1\n")
    meter = CsvMeter(tmp_path / "m.csv")
    meter.start()
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now - 3600)
    with pytest.raises(ConfigError, match="clock was set meanwhile"):
        meter.stop()


def test_a_rest_that_took_more_than_the_work():
    found = account(SimpleNamespace(source="m", label="l"), Reading(10.0, 2.0, 2), Reading(12.0, 2.0, 2), 100)
    assert found.net_j is None and found.net_j_per_inference is None
    assert "drew no less at rest (6 W before, 5 W while measuring)" in outcome._of_energy(found)[0]


def test_an_interval_holds_its_figure():
    # The largest of few samples: on a draw it is never larger, so plain percentiles lie wholly at or below it.
    values = np.sort(np.random.default_rng(0).random(12))
    one = evaluate.Outcome("samples", 12, ("spread",), lambda counts: np.array([np.ptp(values[counts > 0]) ** 2]))
    (figure,) = evaluate.figures(one)
    assert figure.low <= figure.value <= figure.high
    drawn = evaluate.draw(one)[0][:, 0]
    assert np.quantile(drawn, 0.025) < np.quantile(drawn, 0.5) < figure.value and figure.low > np.quantile(drawn, 0.025)
    low, high = bca(5.0, np.array([1.0, 2.0, 3.0]), np.zeros(0))
    assert low < 3 and high == 5.0


def test_an_interval_covers_the_truth_of_a_skewed_figure():
    rng, held = np.random.default_rng(1), 0
    for _ in range(60):
        values = rng.exponential(1.0, 30)
        one = evaluate.Outcome("samples", 30, ("mean",), lambda c, v=values: np.array([v @ c / c.sum()]), cost=10**7)
        (figure,) = evaluate.figures(one)
        held += figure.low <= 1.0 <= figure.high
    assert held >= 52  # 57 of 60 would be 95 %


def test_a_box_counts_for_every_class_where_coco_is_asked_for():
    spec = TensorSpec("output0", (1, 6, 84))
    outputs = np.zeros((1, 6, 84), np.float32)
    outputs[0, :4] = [[32], [32], [8], [8]]
    outputs[0, 4:, 0], outputs[0, 4:, 1] = (0.9, 0.4), (0.0005, 0.002)
    layout = yolo.layout(yolo.Head(decode="model"), (64, 64), [spec])
    best = yolo.candidates(layout, {"output0": outputs}, 0.001)
    every = yolo.candidates(layout, {"output0": outputs}, 0.001, multi_label=True)
    assert best.scores.tolist() == pytest.approx([0.9, 0.002]) and best.classes.tolist() == [0, 1]
    assert every.scores.tolist() == pytest.approx([0.9, 0.4, 0.002]) and every.classes.tolist() == [0, 1, 1]
    outputs[0, 5, 7] = np.nan
    with pytest.raises(AccuracyError, match="scores that are not numbers"):
        yolo.candidates(layout, {"output0": outputs}, 0.001, multi_label=True)


def test_classes_that_are_not_there_are_not_the_lowest(capsys):
    from anynpu.cli.eval_text import show

    figure, absent = Figure(0.5, 0.4, 0.6), Figure(None, None, None)
    cat, unicorn = (ClassFigures(name=n, ap=f, ap50=f) for n, f in (("cat", figure), ("unicorn", absent)))
    show(EvalRecord(schema_version=1, kind="eval", metric="map50", metrics={"map50": figure}, classes=(cat, unicorn)))
    out = capsys.readouterr().out
    assert "cat" in out and "unicorn" not in out and "1 of 2 classes of the data have no object" in out
