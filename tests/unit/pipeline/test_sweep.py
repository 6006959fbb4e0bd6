"""Combinations, resuming, and the front of a sweep."""

from __future__ import annotations

import json

import pytest

from anynpu.errors import ConfigError, IntegrityError
from anynpu.pipeline.request import Request
from anynpu.pipeline.sweep import Cell, Sweep, local, on_cluster, row, sweep, with_front
from anynpu.records.build import ArtifactForm, BuildRecord, ChipForm, RequestForm, SourceForm, Verification
from anynpu.records.shared import ErrorForm, Fidelity
from anynpu.records.sweep import SweepRow
from anynpu.schema import to_dict
from anynpu.seals import with_seal
from anynpu.source.load import ModelSource

BASE = Request(ModelSource("zoo:hello"), ("null",), data="random:8")


def figures(**known):
    plain = {"accuracy": 0.9, "latency_ms": 1.0, "sram_bytes": 100, "flash_bytes": 50, "dram_bytes": None, "group": "g"}
    return SweepRow(model="m", chip="c", status="ok", **{**plain, **known})


def test_every_combination_is_made_once():
    wanted = Sweep(
        Request(ModelSource("zoo:hello"), ("cpu", "tflm", "cpu")),
        ("zoo:hello", "zoo:kws"),
        {"method": ("mse", "minmax"), "activations": ("int8",)},
    )
    cells = wanted.cells()
    assert len(cells) == 2 * 2 * 2
    assert len({cell.address for cell in cells}) == 8
    assert {cell.request.options["method"] for cell in cells} == {"mse", "minmax"}


def test_the_front_holds_what_nothing_beats():
    rows = with_front(
        [
            figures(),
            figures(accuracy=0.95, latency_ms=2.0),
            figures(accuracy=0.85, latency_ms=1.5),
            figures(accuracy=0.80, sram_bytes=10),
            figures(accuracy=None),
        ]
    )
    assert [r.on_front for r in rows] == [True, True, False, True, False]


def test_equal_rows_are_both_on_the_front():
    assert [r.on_front for r in with_front([figures(), figures()])] == [True, True]


def test_an_unknown_latency_never_makes_a_row_look_good():
    rows = with_front([figures(latency_ms=None), figures()])
    assert [r.on_front for r in rows] == [False, True]


def test_memory_without_the_weights_never_makes_a_row_look_good():
    rows = with_front([figures(flash_bytes=None), figures(), figures(flash_bytes=None, dram_bytes=10)])
    assert [r.on_front for r in rows] == [False, False, True]


def test_groups_have_fronts_of_their_own():
    rows = with_front([figures(accuracy=0.99), figures(accuracy=0.2, latency_ms=9.0, group="other")])
    assert all(r.on_front for r in rows)


def built(cell):
    same = Fidelity(1.0, 30.0, 30.0, 0.0, None, 1)
    proof = Verification("here", "null", "", 1, True, {"y": same})
    chip = ChipForm(
        chip=cell.chip,
        npu="",
        status="ok",
        verdict="",
        error=None,
        chain=(ArtifactForm(digest="d"),),
        verification=proof,
        receipt=None,
        estimates=None,
        seconds=1.0,
    )
    request = RequestForm(source=SourceForm(model=cell.request.source.model))
    model = ArtifactForm(digest="m", fingerprint="f" * 64)
    return with_seal(BuildRecord(schema_version=1, kind="build", request=request, model=model, chips=(chip,)))


def test_a_sweep_that_stopped_goes_on_where_it_was(tmp_path, store):
    wanted = Sweep(BASE, ("zoo:hello",), {"a": ("1", "2", "3")})
    seen = []

    def stops_after_two(cells, store):
        for index, cell in enumerate(cells):
            if index == 2:
                raise KeyboardInterrupt
            seen.append(cell.request.options["a"])
            yield cell, built(cell)

    def goes_on(cells, store):
        seen.extend(cell.request.options["a"] for cell in cells)
        yield from ((cell, built(cell)) for cell in cells)

    with pytest.raises(KeyboardInterrupt):
        sweep(wanted, tmp_path, store, stops_after_two, lambda *_: None)
    found = sweep(wanted, tmp_path, store, goes_on, lambda *_: None)
    assert seen == ["1", "2", "3"]
    assert [r.options["a"] for r in found.rows] == ["1", "2", "3"]
    assert json.loads((tmp_path / "sweep.json").read_text())["rows"] == to_dict(found)["rows"]


def test_what_failed_is_tried_again(tmp_path, store):
    wanted = Sweep(BASE, ("zoo:hello",))
    error = ErrorForm(kind="ToolMissing", message="no compiler", exit_status=4)
    failing = lambda cells, store: ((cell, error) for cell in cells)  # noqa: E731
    first = sweep(wanted, tmp_path, store, failing, lambda *_: None)
    assert (first.rows[0].status, first.exit_status) == ("ToolMissing", 4)
    again = sweep(wanted, tmp_path, store, lambda c, s: ((x, built(x)) for x in c), lambda *_: None)
    assert (again.rows[0].status, again.exit_status) == ("ok", 0)


def test_a_damaged_result_is_told(tmp_path, store):
    wanted = Sweep(BASE, ("zoo:hello",))
    (tmp_path / "cells").mkdir()
    (tmp_path / "cells" / f"{wanted.cells()[0].address}.json").write_text("{")
    with pytest.raises(IntegrityError, match="not a result"):
        sweep(wanted, tmp_path, store, local(1), lambda *_: None)


def test_changed_data_makes_another_cell(tmp_path):
    import numpy as np

    file = tmp_path / "x.npy"
    addresses = set()
    for value in (0, 1):
        np.save(file, np.full((4, 3), value, np.float32))
        addresses.add(Cell(Request(ModelSource("zoo:hello"), ("null",), data=str(file))).address)
    assert len(addresses) == 2


def test_the_model_itself_failing_is_a_row(store):
    cell = Cell(BASE)
    told = row(cell, ErrorForm(kind="ConfigError", message="no such", exit_status=2))
    assert (told.status, told.exit_status, told.accuracy) == ("ConfigError", 2, None)


@pytest.mark.build
def test_real_builds_run_side_by_side(tmp_path, store):
    pytest.importorskip("torch")
    wanted = Sweep(Request(ModelSource("zoo:kws"), ("cpu",), limit=40), ("zoo:kws",), {"method": ("minmax", "nope")})
    heard = []
    found = sweep(wanted, tmp_path, store, local(2), lambda row, done, total: heard.append((done, total)))
    good, bad = found.rows
    assert good.status == "ok" and good.score > 0.8 and good.on_front
    assert bad.status == "ConfigError" and bad.exit_status == 2 and found.exit_status == 2
    assert sorted(heard) == [(1, 2), (2, 2)]


def test_a_cluster_builds_the_same_rows(tmp_path, store, monkeypatch):
    distributed = pytest.importorskip("distributed")
    wanted = Sweep(BASE, ("zoo:hello",), {})
    with distributed.LocalCluster(
        n_workers=1, threads_per_worker=1, processes=False, dashboard_address=None
    ) as cluster:
        found = sweep(wanted, tmp_path, store, on_cluster(cluster.scheduler_address), lambda *_: None)
    assert found.rows[0].status == "not executed"  # by the null chip


def test_a_cluster_that_is_not_there_is_told(tmp_path, store):
    pytest.importorskip("distributed")
    with pytest.raises(ConfigError, match="no Dask scheduler"):
        sweep(Sweep(BASE, ("zoo:hello",)), tmp_path, store, on_cluster("nonsense://x"), lambda *_: None)
