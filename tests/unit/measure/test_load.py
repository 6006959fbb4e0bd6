"""The load generator: what it calls, when it stops, what it says, and how little it adds."""

from __future__ import annotations

import gc
import importlib.util
import json
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from anynpu.errors import ConfigError, DeviceError
from anynpu.measure import load, outcome
from anynpu.measure.bench import Sample, board_record, time_board
from anynpu.measure.load import Runner, Settings, Trace
from anynpu.measure.server import arrivals
from anynpu.measure.subject import Infer, Pipeline
from anynpu.measure.timer import Timer, calibrate
from anynpu.measure.together import measure_together
from anynpu.runtime.device.answers import STAGES
from anynpu.schema import to_dict
from anynpu.tensors import Quantization, TensorSpec

X = TensorSpec("x", (1, 4), "int8", quantization=Quantization((0.5,), (3,)))
INPUT = {"x": np.array([[1, 2, 3, 4]], np.int8)}


class Model:
    """A session that takes a given time, counts its runs and fails when told."""

    name, formats, rank, what = "model", ("model",), 0, "a model for tests"
    inputs = outputs = (X,)

    def __init__(self, seconds=0.0, dies_at=None, changes_at=None, error=None):
        self.seconds, self.dies_at, self.changes_at = seconds, dies_at, changes_at
        self.error = error or DeviceError("the device went away", cause="its power")
        self.runs, self.threads, self.closed = 0, set(), False

    def run(self, inputs):
        self.runs += 1
        self.threads.add(threading.get_ident())
        if self.runs == self.dies_at:
            raise self.error
        if self.seconds:
            time.sleep(self.seconds)
        return {"x": inputs["x"] + (1 if self.runs == self.changes_at else 0)}

    def close(self):
        self.closed = True


class Parts(Model):
    """A session that tells its stages, all but a share of them."""

    hidden = 0.0

    def run(self, inputs):
        began = time.perf_counter_ns()
        outputs = super().run(inputs)
        spent = time.perf_counter_ns() - began
        self.parts = {"copy in": 0, "device": int(spent * (1 - self.hidden)), "copy out": 0}
        return outputs

    def stages(self):
        return self.parts


def measure(model, **settings):
    settings = {"min_time_s": 0.05, "min_count": 10, "warm_up": 2, **settings}
    return Runner(lambda: Infer(model, INPUT), Settings(**settings)).run()


def record(model, **settings):
    found = to_dict(outcome.to_record(measure(model, **settings)))
    return json.loads(json.dumps(found, allow_nan=False))


def test_runs_until_both_time_and_count_are_met():
    slow = measure(Model(0.002), min_time_s=0.0, min_count=30)
    assert len(slow.trace.began) == 30
    fast = measure(Model(0.002), min_time_s=0.2, min_count=3)
    assert fast.used.wall_s >= 0.2 and len(fast.trace.began) > 20


def test_an_exact_number_of_runs():
    model = Model(0.001)
    found = record(model, runs=7, warm_up=3)
    assert found["runs"] == len(found["latency"]["samples"]) == 7 and found["warmup"] == 3
    assert model.runs == 1 + load.PROBES + 3 + 7  # cold, probes for the batch, warm-up, samples
    assert found["outputs"]["checked"] == model.runs


def test_the_maximum_time_ends_it_and_is_said():
    found = record(Model(0.02), min_time_s=0.0, max_time_s=0.1, min_count=1000)
    assert 3 <= found["runs"] <= 6 and any("stopped after 0.1 s" in w for w in found["warnings"])


def test_start_times_are_kept_in_order():
    found = record(Model(0.002), runs=12)["latency"]
    started = found["started_s"]
    assert started == sorted(started) and len(started) == 12 and started[1] - started[0] >= 0.002


def test_percentiles_only_where_the_samples_support_them():
    few, more = record(Model(0.0005), runs=10), record(Model(0.0005), runs=70)
    assert "p90" not in few["latency"]["summary"]["percentiles"]
    assert set(more["latency"]["summary"]["percentiles"]) == {"p50", "p90"}


def test_cold_start_is_apart():
    class Lazy(Model):
        def run(self, inputs):
            if not self.runs:
                time.sleep(0.03)
            return super().run(inputs)

    def opener():
        time.sleep(0.02)
        return Infer(Lazy(0.001), INPUT)

    found = to_dict(outcome.to_record(Runner(opener, Settings(runs=10, warm_up=0)).run()))
    assert found["cold"]["load_ms"] >= 20 and found["cold"]["first_ms"] >= 30
    assert found["latency"]["summary"]["median"] < 20


class Cooling(Model):
    """Slow at first, then fast: what warm-up is for."""

    def run(self, inputs):
        time.sleep(max(0.0, 0.006 - 0.0001 * self.runs))
        return super().run(inputs)


def test_warm_up_lasts_until_it_is_stable():
    model = Cooling(0.002)
    runner = Runner(lambda: Infer(model, INPUT), Settings(warm_up_cap_s=20))
    assert runner.warm.stable and runner.warm.runs >= 45


def test_an_unstable_warm_up_is_said():
    class Restless(Model):
        def run(self, inputs):
            self.seconds = 0.002 if self.runs // load.WINDOW_RUNS % 2 else 0.004
            return super().run(inputs)

    found = record(Restless(0.004), warm_up=None, warm_up_cap_s=0.3, runs=5)
    assert found["warm_up"]["stable"] is False and any("not stable" in w for w in found["warnings"])


@pytest.mark.parametrize("error", [DeviceError("the device went away"), RuntimeError("driver says 7")])
def test_a_device_that_dies_leaves_what_was_measured(error):
    model = Model(0.001, dies_at=30, error=error)
    found = record(model, runs=1000)
    assert found["complete"] is False and found["error"]["exit_status"] == 6 and found["error"]["kind"] == "DeviceError"
    assert found["runs"] == 30 - 1 - 2 - 1 - load.PROBES and found["latency"]["summary"] is not None
    assert str(error.args[0]) in found["error"]["message"]


def test_a_device_that_dies_in_warm_up_raises_and_is_closed():
    model = Model(dies_at=3)
    with pytest.raises(DeviceError, match="went away"):
        measure(model)
    assert model.closed


def test_an_interruption_leaves_what_was_measured():
    found = record(Model(0.001, dies_at=30, error=KeyboardInterrupt()), runs=1000)
    assert not found["complete"] and found["error"]["exit_status"] == 130 and found["runs"] == 21


def test_another_output_ends_it():
    found = record(Model(0.001, changes_at=20), runs=1000)
    assert "run 20 gives another output x than the first" in found["error"]["message"] and found["runs"] == 11


def test_the_garbage_collector_rests_while_timing_and_comes_back():
    gc.enable()  # another test may have left it off

    class Looks(Model):
        seen = None

        def run(self, inputs):
            self.seen = gc.isenabled()
            return super().run(inputs)

    model = Looks()
    found = record(model, runs=5)
    assert model.seen is False and gc.isenabled() and found["host"]["gc"] == "disabled while timing"


def test_spikes_are_kept_and_a_collection_is_named_as_cause():
    class Dirty(Model):
        def run(self, inputs):
            if self.runs == 60:
                gc.collect()
                time.sleep(0.05)
            return super().run(inputs)

    found = record(Dirty(0.001), runs=100)
    assert len(found["latency"]["samples"]) == 100
    spike = max(found["spikes"], key=lambda s: s["value"])
    assert spike["value"] >= 50 and "garbage collection" in spike["causes"] and spike["index"] == 60 - 8
    assert any("outliers" in w for w in found["warnings"]) and any("collector ran" in w for w in found["warnings"])


def test_a_twin_claims_no_time_of_the_npu():
    class Twin(Model):
        what = "the command stream on a twin of the NPU"

    assert any("say nothing about the NPU" in w for w in record(Twin(0.001), runs=5)["warnings"])
    assert not any("twin" in w for w in record(Model(0.001), runs=5)["warnings"])


def test_drift_is_reported():
    class Drifts(Model):
        def run(self, inputs):
            time.sleep(0.0005 + 0.0001 * self.runs)
            return super().run(inputs)

    assert any("drift: the latency rises" in w for w in record(Drifts(), runs=120)["warnings"])


def test_stages_of_a_session_are_reconciled():
    found = record(Parts(0.002), runs=20)
    assert (
        list(found["stages"]) == ["copy in", "device", "copy out"] and len(found["stages"]["device"]["samples"]) == 20
    )
    assert abs(found["reconciled"]["unexplained"]) < 0.05 and not any("no stage" in w for w in found["warnings"])


def test_an_unexplained_share_is_warned_of():
    model = Parts(0.002)
    model.hidden = 0.2
    found = record(model, runs=20)
    assert 0.15 < found["reconciled"]["unexplained"] < 0.3 and any("is in no stage" in w for w in found["warnings"])


def test_a_session_without_stages_has_one():
    found = record(Model(0.001), runs=5)
    assert list(found["stages"]) == ["run"] and found["reconciled"] is None


def test_the_pipeline_quantises_runs_and_dequantises():
    seen = []

    def post(outputs):
        time.sleep(0.002)
        seen.append(outputs["x"])

    model = Parts(0.001)
    subject = Pipeline(model, INPUT, None, post)
    found = to_dict(outcome.to_record(Runner(lambda: subject, Settings(runs=8, warm_up=0)).run()))
    assert list(found["stages"]) == ["quantise", "copy in", "device", "copy out", "dequantise", "post"]
    assert found["scope"] == "pipeline" and found["stages"]["post"]["median"] >= 2
    np.testing.assert_array_equal(seen[-1], X.to_real(INPUT["x"]))


def test_a_pipeline_reads_its_input_every_time():
    reads = []

    def read():
        reads.append(1)
        return {"x": X.to_real(INPUT["x"])}

    model = Model(0.001)
    found = to_dict(outcome.to_record(Runner(lambda: Pipeline(model, INPUT, read), Settings(runs=5, warm_up=0)).run()))
    assert list(found["stages"]) == ["preprocess", "quantise", "run", "dequantise"] and len(reads) == model.runs


def wall_fits(found):
    """Says whether the wall time of the throughput holds all that was timed and lies within the window."""
    return sum(found["latency"]["samples"]) / 1000 <= found["throughput"]["wall_s"] <= found["host"]["wall_s"] + 1e-3


def test_multi_stream_takes_as_long_as_its_samples_together():
    found = record(Model(0.002), scenario="multi-stream", streams=4, runs=10)
    assert found["latency"]["summary"]["median"] >= 8 and found["throughput"]["samples_per_query"] == 4
    assert found["throughput"]["per_s"] == pytest.approx(40 / found["throughput"]["wall_s"]) and wall_fits(found)
    assert found["throughput"]["per_s"] <= 500


def test_offline_counts_samples():
    model = Model(0.001)
    found = record(model, scenario="offline", runs=60)
    calls = found["latency"]["batch"] * found["runs"]
    assert calls == 60 and found["latency"]["batch"] > 1 and found["throughput"]["per_s"] <= 1000
    assert found["throughput"]["per_s"] == pytest.approx(60 / found["throughput"]["wall_s"]) and wall_fits(found)


def test_arrivals_are_poisson_and_repeat_with_the_seed():
    settings = Settings(scenario="server", qps=200, runs=4000, seed=5)
    times = arrivals(settings)
    gaps = np.diff(times) / 1e9
    assert times == arrivals(settings) != arrivals(Settings(scenario="server", qps=200, runs=4000, seed=6))
    assert 1 / 210 < gaps.mean() < 1 / 190 and 0.9 < gaps.std() / gaps.mean() < 1.1


def test_server_latency_counts_from_the_scheduled_arrival():
    model = Model(0.01)
    found = record(model, scenario="server", qps=300, runs=30)  # three times what the model can answer
    queue = found["stages"]["queue"]["samples"]
    assert found["latency"]["samples"][-1] > 120 and queue[-1] > queue[0] + 100
    assert len(model.threads) == 1 and found["seed"] == 0
    assert found["queue"]["queries"] == 30 and found["queue"]["unanswered"] == 0


@pytest.mark.parametrize(("bound", "met"), [(400.0, True), (0.5, False)])
def test_a_bound_is_judged_at_its_percentile(bound, met):
    found = record(Model(0.001), scenario="server", qps=400, bound_ms=bound, percentile=90, min_time_s=0.0)
    assert found["runs"] >= 64 and found["verdict"]["met"] is met, found["verdict"]


def test_too_few_queries_prove_no_bound():
    found = record(Model(0.001), scenario="server", qps=400, bound_ms=400.0, runs=50)
    assert not found["verdict"]["met"] and found["verdict"]["why"] == "p99 needs 662 queries, there are 50"


def test_a_server_that_dies_keeps_what_it_answered():
    found = record(Model(0.001, dies_at=30), scenario="server", qps=500, runs=100)
    assert found["runs"] == 26 and not found["complete"] and found["queue"]["unanswered"] == 74


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"scenario": "server", "qps": -1.0}, "--qps -1"),
        ({"scenario": "server", "qps": float("nan")}, "--qps nan"),
        ({"scenario": "server"}, "needs the queries a second"),
        ({"bound_ms": 5.0}, "--bound belongs to the scenario server"),
        ({"qps": 5.0}, "--qps belongs to the scenario server"),
        ({"scenario": "server", "qps": 5.0, "bound_ms": 0.0}, "--bound 0"),
        ({"scenario": "server", "qps": 5.0, "percentile": 100.0}, "--percentile 100"),
        ({"scenario": "burst"}, "no such scenario"),
        ({"min_time_s": 5.0, "max_time_s": 1.0}, "under the minimum"),
        ({"min_time_s": float("inf")}, "min_time_s inf"),
    ],
)
def test_settings_that_make_no_sense(settings, words):
    with pytest.raises(ConfigError, match=words):
        Settings(**settings)


def test_several_models_alone_and_together():
    a, b = Model(0.002), Model(0.001)
    openers = [("a", lambda: Infer(a, INPUT)), ("b", lambda: Infer(b, INPUT))]
    found, error = measure_together(openers, Settings(min_time_s=0.1, min_count=20, warm_up=2), lambda *_: None)
    found = to_dict(found)
    assert error is None and found["complete"]
    first, second = found["together"]["models"]
    for model, ms in ((first, 2), (second, 1)):
        alone, shared = model["alone"]["summary"]["median"], model["together"]["summary"]["median"]
        assert alone >= ms and shared >= ms and model["slowdown"]["ratio"] == pytest.approx(shared / alone)
        assert len(model["together"]["samples"]) >= 20
    assert len(a.threads) == len(b.threads) == 1 and a.threads != b.threads and a.closed and b.closed


def test_models_that_share_a_device_slow_each_other():
    device = threading.Lock()

    class Shares(Model):
        def run(self, inputs):
            with device:
                return super().run(inputs)

    # Long enough that a busy machine adds little to it.
    openers = [(name, lambda: Infer(Shares(0.02), INPUT)) for name in "ab"]
    found, _ = measure_together(openers, Settings(min_time_s=0.4, min_count=20, warm_up=2), lambda *_: None)
    found = to_dict(found)
    means = [(m["alone"]["summary"]["mean"], m["together"]["summary"]["mean"]) for m in found["together"]["models"]]
    assert sum(both for _, both in means) > 1.5 * sum(alone for alone, _ in means)


def test_one_of_several_that_dies_ends_all_and_keeps_what_there_is():
    openers = [("a", lambda: Infer(Model(0.001), INPUT)), ("b", lambda: Infer(Model(0.001, dies_at=60), INPUT))]
    settings = Settings(min_time_s=0.0, min_count=30, warm_up=2)
    found, error = measure_together(openers, settings, lambda *_: None)
    found = to_dict(found)
    assert isinstance(error, DeviceError) and not found["complete"]
    assert [bool(m["error"]) for m in found["together"]["models"]] == [False, True]
    assert found["together"]["models"][1]["alone"]["summary"]["count"] == 30


def test_short_calls_are_timed_in_batches_and_long_ones_are_not():
    timer = Timer(resolution_ns=50, overhead_ns=80)
    assert timer.batch(5000) == 1 and timer.batch(4999) > 1 and timer.batch(100) == 1000
    assert 0 < calibrate().resolution_ns < 1e6


def test_batches_are_said_and_every_call_is_checked():
    found = record(Model(), runs=20, warm_up=0)
    assert found["latency"]["batch"] > 1 and any("the mean of" in w for w in found["warnings"])
    assert found["outputs"]["checked"] == 1 + load.PROBES + 20 * found["latency"]["batch"]


def overhead():
    spec = importlib.util.spec_from_file_location("overhead", Path(__file__).parents[3] / "bench" / "overhead.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_harness_adds_less_than_three_microseconds():
    found = overhead().no_op(runs=300)
    assert found["above_empty_loop_ns"] < 3000 and found["unbatched_above_empty_loop_ns"] < 3000, found


def test_a_sleep_is_reported_within_two_percent():
    found = overhead().sleep(runs=300)
    assert abs(found["median_error"]) < 0.02, found


class Board:
    """As much of a board as its measurement needs; it answers `limit` times."""

    what, board, known_answers, info = "a board", "toy", 0, SimpleNamespace(tick_hz=1000)

    def __init__(self, limit):
        self.limit, self.client = limit, self

    def load(self, inputs):
        return

    def infer(self, runs, warmup):
        return 1000

    def fetch(self):
        return {"x": INPUT["x"]}

    def stages(self, runs):
        self.limit -= 1
        if self.limit < 0:
            raise DeviceError("no answer to 'stages 1'")
        return dict.fromkeys(STAGES, (1, 2, 3))


def test_a_board_that_dies_leaves_what_it_measured():
    found = to_dict(board_record(time_board(Board(3), Sample("x", INPUT), 10, 1)))
    assert found["latency"]["samples"] == [2.0, 2.0, 2.0] and len(found["latency"]["started_s"]) == 3
    assert not found["complete"] and found["error"]["exit_status"] == 6
    with pytest.raises(DeviceError):
        time_board(Board(0), Sample("x", INPUT), 10, 1)


def test_a_trace_broken_in_the_middle_is_whole_again():
    trace = Trace(began=[1, 2], elapsed=[5], stages={"run": [5]})
    trace.trim()
    assert trace.began == [1] and trace.samples_ms() == [5e-06]
