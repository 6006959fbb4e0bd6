"""The ledger: appended by several writers, torn lines, records of every kind, and regressions across versions."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from anynpu import schema
from anynpu.errors import ConfigError, IntegrityError
from anynpu.measure import ledger
from anynpu.measure.compare import Measured, Rules, SideInfo, record_of
from anynpu.measure.ledger import Row, append, read, rows_of
from anynpu.measure.regress import changes
from anynpu.seals import sealed

NET = "f" * 64


def build_record(vela: str, latency_ms: float, at: str, score: float = 0.9) -> dict[str, Any]:
    chain = [
        {"step": {"tools": {"anynpu": "1", "onnx": "1.20"}, "options": {"method": "minmax"}}},
        {"step": {"tools": {"anynpu": "1", "ethos-u-vela": vela}, "options": {"optimise": "size"}}},
    ]
    chip = {
        "chip": "ethos-u55-128",
        "chain": chain,
        "estimates": {"latency_ms": latency_ms, "sram_bytes": 1000, "cycles": None},
        "verification": {"sqnr_db": 37.0, "metric": "top1", "score": score},
    }
    failed = {"chip": "mcxn947", "chain": [], "estimates": None}
    return {"kind": "build", "anynpu": "1", "at": at, "model": {"fingerprint": NET}, "chips": [chip, failed]}


def bench_record(version: str, at: str, samples: list[float], **more: Any) -> dict[str, Any]:
    return {
        "kind": "bench",
        "anynpu": "1",
        "at": at,
        "fingerprint": NET,
        "executed": "ONNX Runtime",
        "chip": "cpu",
        "tools": {"onnxruntime": version},
        "latency": {"unit": "ms", "samples": samples},
        **more,
    }


def added(path: Path, *records: dict[str, Any]) -> list[Row]:
    for record in records:
        append(path, rows_of(record, "record.json"))
    return read(path).rows


def test_a_planted_regression_between_two_vela_versions_is_found(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "ledger.jsonl"
    rows = added(path, build_record("3.12.0", 7.0, "2025-01-01"), build_record("4.0.0", 7.5, "2025-02-01", 0.95))
    found = {change.metric: change for change in changes(rows, "last", Rules())}
    assert found["estimated latency_ms"].verdict == "worse"
    assert found["estimated latency_ms"].tools == {"ethos-u-vela": ("3.12.0", "4.0.0")}
    assert found["estimated sram_bytes"].verdict == found["SQNR"].verdict == "no difference"
    assert found["top1"].verdict == "better", "of a score, more is better"
    assert not changes(added(path, build_record("4.0.0", 9.0, "2025-03-01")), "4.0.0", Rules())


def test_against_names_the_version_to_compare_with(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    times = {"3.11.0": 9.0, "3.12.0": 7.0, "4.0.0": 8.0}
    rows = added(path, *(build_record(v, ms, f"2025-01-0{i + 1}") for i, (v, ms) in enumerate(times.items())))

    def verdict(against: str) -> str:
        return next(c.verdict for c in changes(rows, against, Rules()) if c.metric == "estimated latency_ms")

    assert [verdict(x) for x in ("last", "3.11.0", "ethos-u-vela=3.12.0")] == ["worse", "better", "worse"]
    with pytest.raises(ConfigError, match="did you mean"):
        changes(rows, "ethos-u-vela=3.12", Rules())


def test_raw_samples_are_tested_and_not_only_compared(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)

    def runs(version: str, month: int, factor: float) -> list[dict[str, Any]]:
        made = [factor * math.exp(rng.normal(0, 0.02)) * rng.lognormal(0, 0.05, 80) for _ in range(6)]
        return [bench_record(version, f"2025-0{month}-0{i + 1}", s.tolist()) for i, s in enumerate(made)]

    noisy = added(tmp_path / "noisy", *runs("1.20", 1, 1.0), *runs("1.21", 2, 1.005))
    (same,) = changes(noisy, "last", Rules(margin=0.001))
    assert same.verdict == "no difference" and same.p_value is not None and "6 and 6 launches" in same.note
    (slower,) = changes(added(tmp_path / "slow", *runs("1.20", 1, 1.0), *runs("1.21", 2, 1.1)), "last", Rules())
    assert slower.verdict == "worse" and slower.p_value is not None and slower.p_value < 0.05
    assert slower.interval is not None and slower.interval[0] > 1


def test_rows_made_with_other_options_are_not_mixed(tmp_path: Path) -> None:
    fast, slow = build_record("3.12.0", 5.0, "2025-01-01"), build_record("4.0.0", 9.0, "2025-02-01")
    fast["chips"][0]["chain"][1]["step"]["options"] = {"optimise": "speed"}
    assert changes(added(tmp_path / "ledger", fast, slow), "last", Rules()) == []


def test_a_record_is_added_once_and_its_rows_round_trip(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    record = bench_record("1.20", "2025-01-01", [1.0, 2.0, 3.0, 4.0], scenario="offline", scope="infer")
    assert append(path, rows_of(record, "r")) == 1
    assert append(path, rows_of(record, "r")) == 0
    (row,) = read(path).rows
    assert (row.metric, row.value, row.launches) == ("latency (offline, infer)", 2.0, ((1.0, 2.0, 3.0, 4.0),))
    assert row.host and row.samples_digest


def test_records_of_compare_and_eval_become_rows() -> None:
    sides = [
        SideInfo(name, name, NET, "ONNX Runtime", "cpu", {"onnxruntime": v}) for name, v in (("a", "1"), ("b", "2"))
    ]
    measured = Measured([[1.0, 1.1, 1.2, 1.0]] * 4, [[2.0, 2.1, 2.2, 2.0]] * 4)
    rows = rows_of(schema.to_dict(record_of(*sides, Rules(), measured=measured)), "c")
    assert [(row.value, row.tools["onnxruntime"]) for row in rows] == [(1.0, "1"), (2.0, "2")]
    (change,) = changes(rows, "last", Rules())
    assert change.verdict == "worse"
    scores = {
        "kind": "eval",
        "fingerprint": NET,
        "chip": "cpu",
        "metrics": {"map": {"value": 0.4}, "mse": 0.1, "n": None},
    }
    assert [(row.metric, row.better) for row in rows_of(scores, "e")] == [("map", "higher"), ("mse", "lower")]


def test_a_torn_line_is_left_out_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    added(path, build_record("3.12.0", 7.0, "2025-01-01"))
    whole = path.read_bytes()
    path.write_bytes(whole + whole[: len(whole) // 9])
    ledger = read(path)
    assert (len(ledger.rows), ledger.damaged, ledger.gaps, ledger.unsealed) == (4, 1, 0, 0)
    rows = added(path, build_record("4.0.0", 7.5, "2025-02-01"))
    assert len(rows) == 8 and path.read_bytes().startswith(whole) and read(path).gaps == 0


def test_a_number_that_json_lacks_makes_a_line_damaged(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    append(path, [Row("m", 1.0, "", "f", record="one"), Row("m", 2.0, "", "f", record="two")])
    path.write_text(path.read_text("utf-8").replace("2.0", "1e999", 1), "utf-8")
    assert read(path).damaged == 1


def test_a_row_that_was_edited_is_named(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    added(path, build_record("3.12.0", 7.0, "2025-01-01"))
    lines = path.read_text().splitlines()
    assert '"value":7.0' in lines[0]
    path.write_text("\n".join([lines[0].replace('"value":7.0', '"value":6.0'), *lines[1:]]) + "\n")
    with pytest.raises(IntegrityError, match="line 1: has changed since it was added"):
        read(path)
    path.write_text("\n".join([lines[0], *lines[2:]]) + "\n")
    assert (len(read(path).rows), read(path).gaps) == (3, 1)


def test_rows_of_before_there_were_seals_are_read_and_counted(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    added(path, build_record("3.12.0", 7.0, "2025-01-01"))
    old = [{k: v for k, v in json.loads(line).items() if k not in ("seal", "after")} for line in path.open()]
    path.write_text("".join(json.dumps(row) + "\n" for row in old))
    added(path, build_record("4.0.0", 7.5, "2025-02-01"))
    assert (len(read(path).rows), read(path).gaps, read(path).unsealed) == (8, 0, 4)


def test_a_record_that_was_edited_is_not_added(tmp_path: Path) -> None:
    record = sealed(build_record("3.12.0", 7.0, "2025-01-01"))
    rows_of(json.loads(json.dumps(record)), "r")
    record["chips"][0]["estimates"]["latency_ms"] = 1.0
    with pytest.raises(IntegrityError, match="r: has changed since it was made"):
        rows_of(record, "r")


WRITER = """
import sys
from pathlib import Path
from anynpu.measure.ledger import Row, append
for i in range(12):
    append(Path(sys.argv[1]), [Row("m", float(i), "", "f", record=f"{sys.argv[2]}-{i}")])
"""


def test_several_writers_lose_nothing(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    writers = [subprocess.Popen([sys.executable, "-c", WRITER, str(path), str(i)]) for i in range(3)]
    assert [writer.wait(60) for writer in writers] == [0] * 3
    ledger = read(path)
    assert len({row.record for row in ledger.rows}) == len(ledger.rows) == 36
    assert (ledger.damaged, ledger.gaps, ledger.unsealed) == (0, 0, 0)


@pytest.mark.parametrize(
    ("record", "words"),
    [
        ([], "not a record"),
        ({"schema_version": 1}, "not a record"),
        ({"kind": "run"}, "holds no results"),
        (bench_record("1", "2025", []), "without samples"),
        (bench_record("1", "2025", [1.0, math.nan]), "NaN"),
        (bench_record("1", "2025", [1.0, -2.0]), "positive"),
        (bench_record("1", "2025", ["1"]), "positive"),  # type: ignore[list-item]
        (bench_record("1", "2025", [1.0], complete=False), "broke off"),
        (bench_record("1", "2025", [1.0], fingerprint=None), "names no network"),
        ({"kind": "build", "model": {"fingerprint": NET}, "chips": []}, "no result"),
    ],
)
def test_what_holds_no_result_is_refused(record: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        rows_of(record, "x.json")


def test_damaged_records_and_ledgers_are_said_to_be_so(tmp_path: Path) -> None:
    with pytest.raises(IntegrityError, match="without what it should hold"):
        rows_of({"kind": "build", "chips": [{"chain": [1]}]}, "x.json")
    (tmp_path / "no").write_text(json.dumps({"kind": "build"}) + "\n")
    with pytest.raises(IntegrityError, match="is not a ledger"):
        read(tmp_path / "no")
    with pytest.raises(ConfigError, match="no such ledger"):
        read(tmp_path / "missing")


def test_the_ledger_lies_where_the_environment_says(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("ANYNPU_LEDGER", str(tmp_path / "l"))
    assert ledger.default_path() == tmp_path / "l"
    monkeypatch.delenv("ANYNPU_LEDGER")
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    assert ledger.default_path() == tmp_path / "data" / "anynpu" / "ledger.jsonl"
