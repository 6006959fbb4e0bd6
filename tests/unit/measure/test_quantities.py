"""What figures are called: a time is a latency, a count is not, and a median is the one that the ratio is of."""

from __future__ import annotations

import gc
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from anynpu.errors import ConfigError, DeviceError
from anynpu.measure import launch
from anynpu.measure.bench import BoardBench, Figure, board_record
from anynpu.measure.compare import Measured, Rules, SideInfo, record_of
from anynpu.measure.ledger import launches_of, rows_of
from anynpu.measure.outcome import figure
from anynpu.measure.paired import compare_accuracy
from anynpu.measure.regress import changes
from anynpu.measure.stats import summarize
from anynpu.records.load import load
from anynpu.report import html, markdown
from anynpu.schema import to_dict

NETWORK = "f" * 64


def board(unit: str, hz: int) -> dict[str, Any]:
    found = BoardBench(
        executed="firmware",
        unit=unit,
        clock="",
        warmup=1,
        input="x",
        stages={"inference": Figure((100.0, 101.0, 102.0, 103.0))},
        started_s=(0.0, 1.0, 2.0, 3.0),
        board="a board",
        tick_hz=hz,
        ticks={"inference": (100, 101, 102, 103)},
        per_inference=101.0,
        known_answers=0,
        outputs={},
    )
    return to_dict(replace(board_record(found), fingerprint=NETWORK))


def test_counts_of_a_board_are_no_latency_anywhere():
    counted = board("instructions", 0)
    assert counted["latency"] is None and counted["counts"]["samples"] == [100.0, 101.0, 102.0, 103.0]
    assert launches_of(counted) == ([[100.0, 101.0, 102.0, 103.0]], "instructions")
    (row,) = rows_of(counted, "x")
    assert row.metric == "instructions (single-stream, infer)" and row.host == "", "a count is of no host"
    record = load(counted, "x")
    page = html.render(record)
    assert "median 101 instructions" in page and ">Latency" not in page and "latency in " not in page
    assert "atency" not in markdown.render(record)


def test_times_of_a_board_are_its_latency():
    timed = board("ms", 1000)
    assert "counts" not in timed and timed["latency"]["unit"] == "ms"
    (row,) = rows_of(timed, "x")
    assert row.metric == "latency (single-stream, infer)" and row.host
    assert "latency in ms" in html.render(load(timed, "x"))


def test_compared_counts_are_no_latency():
    a, b = (SideInfo(name, fingerprint=NETWORK) for name in "ab")
    launches = [[100.0 + i for i in range(8)]]
    found = record_of(a, b, Rules(), measured=Measured(launches, launches, "instructions"))
    assert found.latency is None and found.counts.verdict == "no difference"
    assert load(to_dict(found), "x") == found and "B is faster" not in html.render(found)
    assert "atency" not in markdown.render(found)
    assert {row.metric for row in rows_of(to_dict(found), "x")} == {"instructions"}


def test_the_medians_shown_are_those_the_ratio_is_of():
    # Launches of different lengths: the median of all samples is that of the long launch.
    a = [[1.0] * 3, [2.0] * 99, [1.0] * 3, [1.0] * 3]
    b = [[4.0] * 99, [2.0] * 3, [2.0] * 3, [2.0] * 3]
    sides = (SideInfo(name, fingerprint=NETWORK) for name in "ab")
    timed = record_of(*sides, Rules(), measured=Measured(a, b)).latency
    medians = timed.medians
    assert math.isclose(medians.b / medians.a, timed.ratio.median)
    assert medians.a < 1.3 < timed.summary.a.median


def test_regress_shows_the_figures_that_its_ratio_is_of():
    def bench(version: str, at: str, samples: list[float]) -> dict[str, Any]:
        about = {"kind": "bench", "executed": "x", "fingerprint": NETWORK, "tools": {"tool": version}, "at": at}
        return {**about, "latency": {"unit": "ms", "samples": samples}, "host": {"name": "h"}}

    old = rows_of(bench("1", "2025-01-01", [1.0, 1.1, 1.2, 9.0, 9.1, 9.2] * 3), "x")
    new = rows_of(bench("2", "2025-01-02", [2.0, 2.1, 2.2, 9.0, 9.1, 9.3] * 3), "x")
    assert old[0].host == "h", "a time is of the host that was measured, not of the one that adds it"
    (change,) = changes([*old, *new], "last", Rules())
    assert change.ratio is not None and math.isclose(change.after / change.before, change.ratio)


def test_a_stage_has_the_median_of_the_whole():
    samples = [1.0, 2.0, 3.0, 10.0]
    assert figure(samples).median == Figure(tuple(samples)).median == summarize(samples).median == 2.0


def test_labels_that_no_class_has_are_refused_and_not_called_equal():
    scores = {"y": np.eye(3, dtype=np.float32)}
    for labels in (np.array([-1, -2, -3]), np.array([3, 4, 5])):
        with pytest.raises(ConfigError, match="for 3 classes"):
            compare_accuracy("top1", {}, scores, scores, labels)


@pytest.mark.parametrize("changed", [False, True])
def test_a_launch_gives_the_garbage_collector_back(changed):
    class Session:
        what = "x"
        inputs = outputs = ()

        def run(self, inputs: Any) -> dict[str, Any]:
            return {"y": np.array([float(changed and not gc.isenabled())])}

    samples: list[float] = []
    assert gc.isenabled()
    if changed:
        with pytest.raises(DeviceError, match="another output"):
            launch._time(Session(), {}, 0.0, 3, samples)  # type: ignore[arg-type]
    else:
        launch._time(Session(), {}, 0.0, 3, samples)  # type: ignore[arg-type]
        assert len(samples) == 3
    assert gc.isenabled()
