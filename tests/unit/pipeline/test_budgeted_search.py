"""A search under a time budget: what is tried, in which order, for how long, and what is kept of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pytest
from small_net import write_net

from anynpu import plugins
from anynpu.cli.main import main
from anynpu.errors import ConfigError
from anynpu.pipeline.planner import plan
from anynpu.pipeline.request import Request
from anynpu.pipeline.search import Place, Search, search, worst_tensors
from anynpu.pipeline.sweep import Cell, Sweep, local
from anynpu.records.build import (
    ArtifactForm,
    BuildRecord,
    ChipForm,
    EstimatesForm,
    RequestForm,
    SourceForm,
    Verification,
)
from anynpu.records.shared import ErrorForm, Fidelity, FindingForm
from anynpu.records.sweep import SweepRecord, SweepRow
from anynpu.schema import read_json, to_dict
from anynpu.seals import with_seal
from anynpu.source.load import ModelSource
from anynpu.targets.base import moves_of

BASE = Request(ModelSource("net.onnx"), ("cpu",), data="x.npz")


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a small net and samples."""
    write_net(tmp_path / "net.onnx")
    np.savez(tmp_path / "x.npz", x=np.random.default_rng(0).standard_normal((40, 3, 8, 8)).astype(np.float32))
    monkeypatch.chdir(tmp_path)
    return tmp_path


class Clock:
    """Moves when a build says so."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def built(cell: Cell, sqnr_db: float, flash_bytes: int = 1000) -> BuildRecord:
    proof = Verification("here", "null", "", 1, True, {"y": Fidelity(1.0, sqnr_db, sqnr_db, 0.0, None, 1)})
    chip = ChipForm(
        chip=cell.chip,
        npu="",
        status="ok",
        verdict="",
        error=None,
        chain=(ArtifactForm(digest="d"),),
        verification=proof,
        receipt=None,
        estimates=EstimatesForm(source="counted", flash_bytes=flash_bytes),
        seconds=1.0,
    )
    request = RequestForm(source=SourceForm(model=cell.request.source.model))
    model = ArtifactForm(digest="m", fingerprint="f" * 64)
    return with_seal(BuildRecord(schema_version=1, kind="build", request=request, model=model, chips=(chip,)))


GAIN_DB = {"rounding=fitted": 2.0, "method=mse": -1.0, "method=percentile": 1.0, "equalize=false": -3.0}


def landscape(options: Mapping[str, str]) -> float:
    """A model on which bias correction hurts, but only where weights are fitted."""
    gain = sum(GAIN_DB.get(f"{name}={value}", 0.0) for name, value in options.items())
    return 30.0 + gain + (0.5 if options.get("bias_correction") == "false" and "rounding" in options else 0.0)


def runs(clock: Clock, seen: list[Cell], seconds: Callable[[Cell], float] = lambda cell: 10.0, stop_at: int = 10**6):
    def run(cells, store):
        for cell in cells:
            if len(seen) == stop_at:
                raise KeyboardInterrupt
            seen.append(cell)
            clock.now += seconds(cell)
            yield cell, built(cell, landscape(cell.request.options))

    return run


def searched(minutes: float, options: Mapping[str, tuple[str, ...]] = {}, **more) -> Search:
    kept = {"activations": ("int8",), "weight_bits": ("8",), **options}
    return Search(Sweep(BASE, ("net.onnx",), kept), minutes, **more)


def last(records) -> SweepRecord:
    *_, record = records
    return record


@pytest.fixture
def no_tensors(monkeypatch: pytest.MonkeyPatch) -> None:
    """For searches of builds that nobody made, and that nobody can diagnose."""
    monkeypatch.setattr(Place, "undiagnosed", lambda self: None)


def test_it_finds_what_single_steps_do_not(here, store, no_tensors):
    seen, clock = [], Clock()
    found = last(search(searched(60), here / "s", store, runs(clock, seen), lambda *_: None, clock))
    (best,) = (line for line in found.rows if line.best)
    chosen = {"rounding": "fitted", "method": "percentile", "bias_correction": "false"}
    assert {name: best.options[name] for name in chosen} == chosen
    assert best.sqnr_db == pytest.approx(33.5)
    assert found.search.ended == "nothing left to try" and not found.search.untried
    assert len({cell.address for cell in seen}) == len(seen) == len(found.rows)
    assert dict(seen[0].request.options) == {"activations": "int8", "weight_bits": "8"}
    fitted = [dict(cell.request.options) for cell in seen if cell.request.options.get("rounding") == "fitted"]
    lost = next(at for at, options in enumerate(fitted) if options.get("equalize") == "false")
    gained = next(at for at, options in enumerate(fitted) if options.get("method") == "percentile")
    assert gained < lost, "what lost elsewhere is tried last"


@pytest.mark.parametrize(("minutes", "each_s"), [(1, 10), (1, 13), (2, 7.5), (0.1, 10)])
def test_the_budget_is_kept(here, store, no_tensors, minutes, each_s):
    seen, clock = [], Clock()
    found = last(
        search(searched(minutes), here / "s", store, runs(clock, seen, lambda cell: each_s), lambda *_: None, clock)
    )
    assert found.search.ended == "out of time" and found.search.untried
    assert len(seen) == max(1, 60 * minutes // each_s), "as many as fit, and one at least"


def test_one_build_may_exceed_the_budget_and_no_other_follows(here, store, no_tensors):
    seen, clock = [], Clock()
    slow = runs(clock, seen, lambda cell: 500.0 if "rounding" in cell.request.options else 10.0)
    last(search(searched(1), here / "s", store, slow, lambda *_: None, clock))
    assert [("rounding" in cell.request.options) for cell in seen] == [False, True]


def test_an_interrupted_search_goes_on(here, store, no_tensors):
    seen, clock = [], Clock()
    halfway = search(searched(60), here / "s", store, runs(clock, seen, stop_at=5), lambda *_: None, clock)
    with pytest.raises(KeyboardInterrupt):
        last(halfway)
    kept = read_json(here / "s" / "sweep.json")
    assert len(kept["rows"]) == 5 and kept["search"]["ended"] == "unfinished"
    resumed = last(search(searched(60), here / "s", store, runs(clock, seen), lambda *_: None, clock))
    assert len({cell.address for cell in seen}) == len(seen), "nothing is built twice"
    whole = last(search(searched(60), here / "t", store, runs(Clock(), []), lambda *_: None, Clock()))
    assert resumed.rows == whole.rows


def test_options_narrow_the_search(here, store, no_tensors):
    seen, clock = [], Clock()
    wanted = searched(60, {"method": ("minmax", "mse"), "cpu.rounding": ("nearest",)})
    last(search(wanted, here / "s", store, runs(clock, seen), lambda *_: None, clock))
    assert {cell.request.options["method"] for cell in seen} == {"minmax", "mse"}
    assert {cell.request.options["cpu.rounding"] for cell in seen} == {"nearest"}
    assert not any("rounding" in cell.request.options or "percentile" in cell.request.options for cell in seen)


def test_several_builds_at_once_are_the_same_search(here, store, no_tensors):
    results = []
    for jobs in (1, 3):
        clock = Clock()
        wanted = searched(60, jobs=jobs)
        found = last(search(wanted, here / str(jobs), store, runs(clock, []), lambda *_: None, clock))
        results.append(next(line.sqnr_db for line in found.rows if line.best))
    assert results[0] == results[1]


def test_what_is_smaller_is_gone_on_from_too(here, store, no_tensors):
    """4-bit weights lose and stay on the front for their size; the best of them is searched for as well."""

    def run(cells, store):
        for cell in cells:
            small = cell.request.options.get("weight_bits") == "4"
            yield cell, built(cell, landscape(cell.request.options) - 12 * small, 500 if small else 1000)

    wanted = Search(Sweep(BASE, ("net.onnx",), {"activations": ("int8",)}), 60)
    found = last(search(wanted, here / "s", store, run, lambda *_: None, Clock()))
    front = {line.flash_bytes: line.sqnr_db for line in found.rows if line.on_front}
    assert front == pytest.approx({1000: 33.5, 500: 21.5})


def test_a_gate_that_nothing_passes_is_climbed_towards(here, store, no_tensors):
    def run(cells, store):
        for cell in cells:
            record = built(cell, landscape(cell.request.options))
            error = ErrorForm(kind="AccuracyError", message="too low", exit_status=7)
            yield cell, replace(record, chips=(replace(record.chips[0], status="AccuracyError", error=error),))

    found = last(search(searched(60), here / "s", store, run, lambda *_: None, Clock()))
    assert found.exit_status == 7 and not any(line.best for line in found.rows)
    assert max(line.sqnr_db for line in found.rows) == pytest.approx(33.5)
    assert any("passes the gate" in note for note in found.notes)


def test_tensors_that_a_chip_refuses_are_left_out(here):
    (place,) = searched(1).places()
    start = place.next()
    place.take(start, built(start, 30.0))
    place.worst = {"wide_tensors": [["a"], ["b", "before_b"], ["c"], ["d"], ["e"], ["f"]]}
    wide = [cell for cell in place.steps(start.request) if "wide_tensors" in cell.request.options]
    assert [cell.request.options["wide_tensors"] for cell in wide] == ["a", "a,b,before_b", "a,b,before_b,c"]
    refused = ErrorForm(
        kind="Unsupported", message="no kernel", exit_status=3, findings=(FindingForm(message="no", where="a"),)
    )
    place.take(wide[0], refused)
    again = [cell.request.options.get("wide_tensors") for cell in place.steps(start.request)]
    assert again[0] != "a" and "b,before_b" in again and not any(names and "a" in names.split(",") for names in again)


def test_a_table_names_the_first_of_many_tensors():
    line = SweepRow(model="m", chip="cpu", status="ok", options={"method": "mse", "wide_tensors": "a,b,c,d"})
    assert line.title == "m cpu method=mse wide_tensors=a,b,...(4)"


def test_training_is_tried_where_it_is_asked_for(here):
    for train in (False, True):
        (place,) = searched(1, train=train).places()
        start = place.next()
        place.take(start, built(start, 30.0))
        assert any(cell.request.qat for cell in place.steps(start.request)) == train


def test_every_move_is_an_option_of_its_compiler():
    searched_targets = set()
    for name in ("cpu", "tflite", "rk3588", "hexagon-v73", "ryzen-ai-phx", "zhouyi-z3", "cv180x", "max78000"):
        platform = plugins.platform(name)
        for link in plan(platform, {}):
            known = {each.name for each in fields(link.target.Options)}
            for move in moves_of(link.target):
                assert {*move.settings, *move.without, *([move.worst] if move.worst else [])} <= known, (name, move)
                plan(platform, {f"{link.target.name}.{key}": value for key, value in move.settings.items()})
                searched_targets.add(link.target.name)
    assert searched_targets == {"cpu", "tflite", "rknn", "qnn", "vitisai", "zhouyi", "cvi", "ai8x"}


@pytest.mark.parametrize("minutes", [0.0, -1.0, float("nan"), float("inf")])
def test_a_budget_is_a_time(minutes):
    with pytest.raises(ConfigError, match="more than 0 minutes"):
        searched(minutes)


@pytest.mark.build
def test_real_builds_are_searched_and_the_best_is_kept(here, store, monkeypatch, capsys):
    """The start and two steps, with a clock that stops there; the diagnosis names tensors that a build takes."""
    monkeypatch.setenv("ANYNPU_CACHE_DIR", str(store.cache))
    clock = Clock()

    def run(cells, store):
        for each in local(1)(cells, store):
            clock.now += 60.0
            yield each

    narrow = {"rounding": ("nearest",), "equalize": ("true",), "method": ("percentile", "auto", "mse")}
    wanted = searched(3, narrow)
    found = last(search(wanted, here / "s", store, run, lambda *_: None, clock))
    assert [line.status for line in found.rows] == ["ok"] * 3
    assert max(found.rows, key=lambda line: line.sqnr_db).best
    groups = worst_tensors(to_dict(Cell(wanted.places()[0].start).request), str(store.cache))
    assert {name for group in groups["wide_tensors"] for name in group} & {"x", "y"}

    words = ["sweep", "-m", "net.onnx", "-t", "cpu", "--data", "x.npz", "-o", "s", "-j", "1"]
    words += [word for name, values in wanted.sweep.options.items() for word in ("-O", f"{name}={','.join(values)}")]
    assert main([*words, "--search", "0.001"]) == 0
    said = capsys.readouterr().out
    assert "best of net.onnx on cpu" in said and "builds in all: out of time" in said
    report = read_json(here / "s" / "best" / "cpu" / "report.json")
    assert report["chips"][0]["status"] == "ok"
