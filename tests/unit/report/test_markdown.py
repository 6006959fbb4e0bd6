"""Reports of builds that went well, failed, fell back, could not be verified, or used random data."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from anynpu import plugins
from anynpu.artifact import Artifact, Estimates, Made, Manifest, OperatorPlacement, Placement, Step, seal
from anynpu.errors import AccuracyError, AnyNpuError, Finding, ToolFailed, Unsupported
from anynpu.measure.fidelity import Fidelity
from anynpu.measure.verify import Verification
from anynpu.pipeline.record import record
from anynpu.pipeline.request import Request
from anynpu.pipeline.result import BuildResult, ChipResult
from anynpu.records.build import StageTiming
from anynpu.records.load import load
from anynpu.records.parts import as_json, error_record
from anynpu.report import figures
from anynpu.report.markdown import render
from anynpu.schema import to_dict
from anynpu.source.load import ModelSource
from anynpu.tensors import TensorSpec

NPU = OperatorPlacement("conv", "CONV_2D", "npu", macs=900)
CPU = OperatorPlacement("soft", "SOFTMAX", "cpu", "not in the table", macs=100)
PROOF = Verification(
    executed="TFLite-Micro interpreter on this host",
    device="tflm",
    stands_for="",
    samples=64,
    held_out=True,
    outputs={"y": Fidelity(0.9999, 38.25, 36.5, 0.01, 0.984, 64)},
    metric="top1",
    score_float=0.9,
    score=0.89,
    arena_bytes=2048,
)


def made(folder: Path, name: str, **more: Any) -> Artifact:
    folder /= name
    folder.mkdir(parents=True)
    (folder / "m").write_bytes(b"m")
    spec = (TensorSpec("x", (1, 3, 8, 8), layout="NCHW"),)
    manifest = Manifest(**{"format": "vela", "main": "m", "inputs": spec, "fingerprint": "f" * 64, **more})
    return seal(folder, manifest, Step(name, tools={"vela": "5.2.0"}), Made("2026-01-01T00:00:00+00:00", 1.0))


def chip(folder: Path, **more: Any) -> ChipResult:
    estimates = Estimates("Vela", sram_bytes=10240, flash_bytes=20480, latency_ms=1.25)
    artifact = made(folder, "vela", placement=Placement("Ethos-U55", (NPU,)), estimates=estimates)
    platform = plugins.platform("ethos-u55-128")
    return ChipResult(**{"chip": platform.name, "platform": platform, "artifacts": (artifact,), **more})


def rendered(folder: Path, *chips: ChipResult, notes: tuple[str, ...] = ()) -> tuple[dict[str, Any], str]:
    result = BuildResult(Request(ModelSource("net.onnx"), ("ethos-u55-128",)), notes=list(notes))
    result.model = made(
        folder, "import", format="onnx", estimates=Estimates("counted", macs=12_501_632, parameters=999)
    )
    result.chips = list(chips)
    result.timings = (StageTiming(stage="import", seconds=1.5, cached=True),)
    data = to_dict(record(result))
    again = json.loads(as_json(data), parse_constant=pytest.fail)
    assert again == data
    loaded = load(again, "x")
    assert to_dict(loaded) == data
    return again, render(loaded)


def test_a_good_build(tmp_path: Path) -> None:
    data, text = rendered(tmp_path, chip(tmp_path, verification=PROOF))
    assert data["chips"][0]["status"] == "ok" and data["exit_status"] == 0
    assert data["chips"][0]["receipt"]["share"] == 1.0 and data["chips"][0]["verification"]["sqnr_db"] == 38.25
    for words in (
        "# net.onnx",
        "| ethos-u55-128 | ok | 38.2 | 90.0 % | 89.0 % | 100.0 % | 1.250 | 10.0 | 20.0 |",
        "est. ms is an estimate, not a measurement (Vela)",
        "Executed by TFLite-Micro interpreter on this host on 64 held-out samples",
        "1 of 1 operators on the Ethos-U55, 100.0 % of the MACs",
        "12.50 M MACs",
        "- vela 5.2.0",
        "| all | import | 1.50 | yes |",
    ):
        assert words in text, words


def test_memory_is_told_section_by_section(tmp_path: Path) -> None:
    sections = [
        {"name": ".text code", "flash_bytes": 5204, "ram_bytes": 0},
        {"name": ".bss arena", "flash_bytes": 0, "ram_bytes": 49440},
    ]
    left = ["machine code: gcc is not installed (install gcc)", "the stack"]
    memory = {"flash_bytes": 5204, "ram_bytes": 49440, "sections": sections, "not_counted": left}
    details = {"memory": memory, "compiler": "gcc 12", "flags": ["-O3"], "arena": {"live_bytes": 49152}}
    text = rendered(tmp_path, chip(tmp_path, artifacts=(made(tmp_path, "mcu_c", details=details),)))[1]
    for words in (
        "\n\nMemory by section in bytes (objects of gcc 12, -O3; tensors alive at once take 49,152).",
        "| section | flash | RAM |",
        "| .text code | 5,204 | 0 |",
        "| .bss arena | 0 | 49,440 |",
        "| total | 5,204 | 49,440 |",
        "Not counted: machine code: gcc is not installed (install gcc), the stack.",
    ):
        assert words in text, words


def test_memory_of_an_npu_is_told_area_by_area(tmp_path: Path) -> None:
    figures = {"latency_ms": 1.0, "sram_bytes": 51_888, "flash_bytes": 79_344, "dram_bytes": 0}
    details = {"candidates": {"size": figures}, "chosen": "size", "memory_mode": "Shared_Sram", "file_bytes": 83_120}
    text = rendered(tmp_path, chip(tmp_path, artifacts=(made(tmp_path, "small", details=details),)))[1]
    assert "memory mode Shared_Sram" in text and "| SRAM: what the NPU works in | 0 | 51,888 |" in text
    assert "| flash: of it, weights of the NPU | 79,344 | 0 |" in text and "83,120 | 0 |" in text and "DRAM" not in text


def test_a_fallback_names_each_operator_and_the_reason(tmp_path: Path) -> None:
    artifact = made(tmp_path, "partly", placement=Placement("Ethos-U55", (NPU, CPU)))
    verdict = "50.0% on the Ethos-U55, 100% required"
    data, text = rendered(tmp_path, chip(tmp_path, artifacts=(artifact,), verification=PROOF, verdict=verdict))
    assert data["exit_status"] == 1 and "ethos-u55-128: fallback" in text and f"**{verdict}**" in text
    assert "| soft | SOFTMAX | 100 | not in the table |" in text
    assert data["chips"][0]["receipt"]["elsewhere"][0]["reason"] == "not in the table"


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (Unsupported("cannot go there", [Finding("b", "Batch size must be 1.", "conv1")], "h"), "- conv1: Batch size"),
        (ToolFailed("vela failed", ["vela"], 1, "x.log", ["line | one"], "read it"), "line | one"),
        (AccuracyError("too bad", "sqnr_db", float("nan"), 10.0, ["y"], "more data"), "**too bad** (more data)"),
    ],
)
def test_a_failure_is_told_with_what_is_known(tmp_path: Path, error: AnyNpuError, words: str) -> None:
    data, text = rendered(tmp_path, chip(tmp_path, artifacts=(), error=error))
    assert data["exit_status"] == error.exit_status and type(error).__name__ in text
    assert words in text and "Not executed: the build did not get that far." in text


def test_what_could_not_be_verified_says_why(tmp_path: Path) -> None:
    _, text = rendered(tmp_path, chip(tmp_path, not_verified="nothing on this machine executes vela"))
    assert "Not executed: nothing on this machine executes vela." in text


def test_a_stand_in_is_named(tmp_path: Path) -> None:
    _, text = rendered(tmp_path, chip(tmp_path, verification=replace(PROOF, stands_for="vela", held_out=False)))
    assert "(the model before the last compiler) on 64" in text and "calibration samples" in text
    assert "nothing here executes vela" in text


def test_random_data_is_said_first(tmp_path: Path) -> None:
    note = "RANDOM CALIBRATION DATA: the figures prove the arithmetic, nothing about the task"
    _, text = rendered(tmp_path, chip(tmp_path, verification=PROOF), notes=(note,))
    assert text.index(f"> **{note}**") < text.index("| chip |")


def test_several_chips_each_have_a_row_and_the_first_failure_its_status(tmp_path: Path) -> None:
    good = chip(tmp_path, verification=PROOF)
    bad = replace(good, chip="hxwe2", artifacts=(), verification=None, error=Unsupported("no"))
    data, text = rendered(tmp_path, good, bad, replace(good, chip="z", verdict="v"))
    assert data["exit_status"] == 3
    rows = [line.split(" | ") for line in text.splitlines() if line.startswith("| ") and line.count("|") == 11]
    assert [row[1] for row in rows[2:]] == ["ok", "Unsupported", "fallback"]


def test_an_error_as_data_is_always_json() -> None:
    data = error_record(AccuracyError("m", "sqnr_db", float("-inf"), 10.0, ["y"], "h"))
    assert data["got"] is None and data["kind"] == "AccuracyError" and data["exit_status"] == 7
    json.dumps(data, allow_nan=False)


@pytest.mark.parametrize(
    ("found", "shown"),
    [
        (figures.kib(None), "-"),
        (figures.kib(1536), "1.5"),
        (figures.count(None), "-"),
        (figures.count(999), "999"),
        (figures.count(1_500), "1.50 k"),
        (figures.count(2_000_000_000), "2.00 G"),
        (figures.percent(None), "-"),
        (figures.percent(0.12345), "12.3 %"),
        (figures.decibel(None), "-"),
        (figures.decibel(200.0), "exact"),
        (figures.decibel(31.04), "31.0"),
    ],
)
def test_figures_as_people_read_them(found: str, shown: str) -> None:
    assert found == shown
