"""Measures what `anynpu bench` adds to what it measures and writes bench/results/overhead.json.

No-op: a session that does nothing, against an empty Python loop. Sleep: a model that sleeps 1 ms; the truth is what the
session itself reads from another clock (CLOCK_MONOTONIC_RAW) around its sleep, since a sleep overshoots.
"""

from __future__ import annotations

import itertools
import json
import statistics
import sys
import time
from pathlib import Path

import numpy as np

from anynpu.measure import host
from anynpu.measure.load import Runner, Settings, Trace, loop
from anynpu.measure.outcome import to_record
from anynpu.measure.subject import Infer

RESULTS = Path(__file__).parent / "results"
LIMIT_NS, LIMIT_SHARE = 3000, 0.02
ANSWER = {"y": np.zeros((1, 10), np.float32)}


class NoOp:
    """A session that does nothing."""

    what, inputs, outputs = "nothing", (), ()

    def run(self, inputs):
        return ANSWER

    def close(self):
        return


class Sleep(NoOp):
    """A session that sleeps and keeps its own time."""

    what = "a sleep"

    def __init__(self, seconds=0.001):
        self.seconds, self.truth_ns = seconds, []

    def run(self, inputs):
        began = time.clock_gettime_ns(time.CLOCK_MONOTONIC_RAW)
        time.sleep(self.seconds)
        self.truth_ns.append(time.clock_gettime_ns(time.CLOCK_MONOTONIC_RAW) - began)
        return ANSWER


def empty_loop_ns(count: int = 200_000) -> float:
    """Returns what one turn of an empty Python loop costs."""
    found = []
    for _ in range(7):
        began = time.perf_counter_ns()
        for _ in itertools.repeat(None, count):
            pass
        found.append((time.perf_counter_ns() - began) / count)
    return statistics.median(found)


def no_op(runs: int = 2000) -> dict:
    """Returns the reported latency of nothing: as bench does it (batches), and one call at a time."""
    empty = empty_loop_ns()
    record = to_record(Runner(lambda: Infer(NoOp(), {}), Settings(runs=runs, warm_up=100)).run())
    single, subject, watch = Trace(), Infer(NoOp(), {}), host.Watch()
    loop(subject, Settings(runs=20_000), single, watch)
    gaps = [b - a - spent for (a, b), spent in zip(itertools.pairwise(single.began), single.elapsed, strict=False)]
    reported = 1e6 * record.latency.summary.median
    alone = statistics.median(single.elapsed)
    return {
        "empty_loop_ns": empty,
        "reported_ns": reported,
        "batch": record.latency.batch,
        "above_empty_loop_ns": reported - empty,
        "unbatched_ns": alone,
        "unbatched_above_empty_loop_ns": alone - empty,
        "between_runs_ns": statistics.median(gaps),
        "timer": vars(record.timer),
    }


def sleep(runs: int = 1000) -> dict:
    """Returns the reported latency of a 1 ms sleep beside the session's own clock."""
    session = Sleep()
    record = to_record(Runner(lambda: Infer(session, {}), Settings(runs=runs, warm_up=20)).run())
    truth = [ns / 1e6 for ns in session.truth_ns[-runs:]]
    summary = record.latency.summary
    return {
        "runs": runs,
        "truth_median_ms": statistics.median(truth),
        "reported_median_ms": summary.median,
        "median_error": summary.median / statistics.median(truth) - 1,
        "mean_error": summary.mean / statistics.mean(truth) - 1,
    }


def main() -> int:
    nothing, slept = no_op(), sleep()
    machine = {
        name: value for name, value in host.describe().items() if name in ("cpu", "cores", "python", "load_1min")
    }
    found = {"host": machine, "no_op": nothing, "sleep_1ms": slept}
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "overhead.json").write_text(json.dumps(found, indent=1) + "\n")
    print(json.dumps(found, indent=1))
    worst = max(nothing["above_empty_loop_ns"], nothing["unbatched_above_empty_loop_ns"])
    good = worst < LIMIT_NS and max(abs(slept["median_error"]), abs(slept["mean_error"])) < LIMIT_SHARE
    print("within the limits" if good else "BEYOND THE LIMITS")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
