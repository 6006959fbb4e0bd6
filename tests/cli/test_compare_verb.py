"""anynpu compare and regress as users call them."""

from __future__ import annotations

import json
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from anynpu.artifact import Made, Manifest, Step, seal
from anynpu.cli import compare as verb
from anynpu.errors import DeviceError
from anynpu.measure.launch import Interleaved, Side
from anynpu.tensors import TensorSpec

pytest.importorskip("onnxruntime")

from anynpu.testing import models


def null_artifact(folder: Path, fingerprint: str = "f" * 64, format: str = "null") -> Path:
    folder.mkdir()
    (folder / "model").write_text("nothing\n")
    spec = TensorSpec("x", (1, 4), "float32")
    manifest = Manifest(format=format, main="model", inputs=(spec,), outputs=(spec,), fingerprint=fingerprint)
    seal(folder, manifest, Step("null"), Made("2025-01-01T00:00:00+00:00", 0.0))
    return folder


def bench_file(path: Path, samples: list[float], **more: Any) -> str:
    stage = {"inference": {"samples": samples}}
    record = {"kind": "bench", "fingerprint": "f" * 64, "artifact": "d", "executed": "a runtime", "unit": "ms"}
    path.write_text(json.dumps({**record, "stages": stage, **more}))
    return path.name


def times(seed: int, factor: float = 1.0) -> list[float]:
    return (factor * np.random.default_rng(seed).lognormal(0, 0.05, 100)).tolist()


def test_records_are_judged_and_the_status_tells(cli, tmp_path):
    before, after = bench_file(tmp_path / "a.json", times(1)), bench_file(tmp_path / "b.json", times(2, 1.2))
    worse = cli("compare", before, after)
    assert worse.returncode == 1, worse.stderr
    assert "verdict: worse" in worse.stdout and "one launch" in worse.stdout
    better = cli("compare", after, before, "-f", "json")
    found = json.loads(better.stdout)
    assert better.returncode == 0 and found["verdict"] == "better" and found["kind"] == "compare"
    assert found["latency"]["ratio"]["high"] < 0.9 and found["anynpu"]
    assert json.loads(cli("compare", before, before, "-f", "json").stdout)["verdict"] == "no difference"


def test_a_comparison_goes_into_the_ledger_and_comes_out_of_it(cli, tmp_path):
    old = bench_file(tmp_path / "a.json", times(1), chip="cpu", tools={"onnxruntime": "1.20"})
    new = bench_file(tmp_path / "b.json", times(2, 1.2), chip="cpu", tools={"onnxruntime": "1.21"})
    assert cli("compare", old, new, "--ledger", "l.jsonl").returncode == 1
    found = cli("regress", "--ledger", "l.jsonl")
    assert found.returncode == 1, found.stderr
    assert "onnxruntime 1.20 -> 1.21" in found.stdout and "worse" in found.stdout
    lenient = cli("regress", "--margin", "50%", "-f", "json", ANYNPU_LEDGER=str(tmp_path / "l.jsonl"))
    record = json.loads(lenient.stdout)
    assert lenient.returncode == 0 and record["kind"] == "regress" and record["verdict"] == "ok"
    assert record["changes"][0]["ratio"] == pytest.approx(1.2, abs=0.05)


def test_records_are_added_all_or_none(cli, tmp_path):
    good = bench_file(tmp_path / "a.json", times(1))
    (tmp_path / "bad.json").write_text('{"kind": "run"}')
    refused = cli("regress", "--ledger", "l.jsonl", "--add", good, "--add", "bad.json")
    assert refused.returncode == 2 and "bad.json" in refused.stderr and not (tmp_path / "l.jsonl").exists()
    done = cli("regress", "--ledger", "l.jsonl", "--add", good)
    assert done.returncode == 0 and "1 rows, 1 of them new" in done.stdout


@pytest.mark.parametrize(
    ("record", "words"),
    [
        ("[1, 2]", "not a bench record"),
        ('{"kind": "build"}', "one of kind build"),
        ('{"kind": "bench", "latency": {"samples": []}}', "without samples"),
        ('{"kind": "bench", "latency": {"samples": [1.0, -1.0]}}', "positive, finite"),
        ('{"kind": "bench", "latency": 3}', "not a whole bench record"),
        ('{"kind": "bench", "complete": false, "latency": {"samples": [1.0]}}', "broke off"),
    ],
)
def test_what_is_no_bench_record_is_refused(refuse, tmp_path, record, words):
    good = bench_file(tmp_path / "a.json", times(1))
    (tmp_path / "b.json").write_text(record)
    refuse(2, words, "compare", good, "b.json")


def test_a_record_with_a_number_that_json_lacks_is_damaged(refuse, tmp_path):
    good = bench_file(tmp_path / "a.json", times(1))
    (tmp_path / "b.json").write_text('{"kind": "bench", "latency": {"samples": [1.0, NaN]}}')
    refuse(8, "NaN is not a number", "compare", good, "b.json")


def test_other_requests_that_cannot_be_met(refuse, tmp_path):
    good = bench_file(tmp_path / "a.json", times(1))
    counted = bench_file(tmp_path / "c.json", times(1), unit="instructions")
    other = bench_file(tmp_path / "o.json", times(1), fingerprint="e" * 64)
    null_artifact(tmp_path / "n")
    null_artifact(tmp_path / "npu", format="tflite-neutron")
    refuse(2, "counts ms", "compare", good, counted)
    refuse(2, "different networks", "compare", good, other, hint="--different-networks")
    refuse(2, "one is a record", "compare", good, "n")
    refuse(2, "what is to be compared", "compare", "n", "n", hint="--time")
    refuse(2, "too few for a verdict", "compare", "n", "n", "--time", "--launches", "3", hint="4 launches")
    refuse(2, "--margin 2x", "compare", "n", "n", "--time", "--margin", "2x")
    refuse(2, "level 2", "compare", "n", "n", "--time", "--level", "2")
    refuse(4, "executes tflite-neutron", "compare", "n", "npu", "--time")


def test_different_networks_are_labelled(cli, tmp_path):
    bench_file(tmp_path / "a.json", times(1))
    bench_file(tmp_path / "b.json", times(2, 2.0), fingerprint="e" * 64)
    done = cli("compare", "a.json", "b.json", "--different-networks")
    assert done.returncode == 0, done.stderr
    lines = [line for line in done.stdout.splitlines() if line.startswith(("latency:", "verdict:", "note: not"))]
    assert len(lines) == 3 and all("not comparable" in line for line in lines)


@pytest.fixture(scope="module")
def built(tmp_path_factory, session_cache) -> Path:
    """A small model built for the CPU, and labelled samples."""
    from anynpu.cli.main import main

    folder = tmp_path_factory.mktemp("compared")
    models.save(models.conv_net(), folder / "net.onnx")
    images = np.random.default_rng(7).normal(0, 1, (60, 3, 8, 8)).astype(np.float32)
    np.savez(folder / "x.npz", image=images)
    built = ["build", "-m", str(folder / "net.onnx"), "-t", "cpu", "--data", str(folder / "x.npz")]
    assert main([*built, "-o", str(folder / "out"), "-q"]) == 0
    labels = np.random.default_rng(8).integers(0, 4, 60)
    np.savez(folder / "labelled.npz", image=images, labels=labels)
    return folder


def test_two_artifacts_are_timed_in_turn_and_scored(cli, built):
    paths = ("out/float", "out/cpu", "--data", "labelled.npz")
    flags = ("--time", "--launches", "5", "--seconds", "0", "-n", "20", "-f", "json", "--margin", "99%")
    done = cli("compare", *paths, *flags, cwd=built)
    found = json.loads(done.stdout)
    assert found["latency"]["order"] == "ABBAABBAAB", done.stderr
    assert [len(launch) for launch in found["latency"]["launches"]["b"]] == [20] * 5
    assert found["outputs"]["scores"]["sqnr_db"] > 20 and found["outputs_verdict"] == "same"
    assert found["accuracy"]["test"].startswith("McNemar") and found["accuracy"]["samples"] == 60
    assert found["a"]["artifact"] != found["b"]["artifact"] and "onnxruntime" in found["b"]["tools"]
    assert any("60 labelled samples are few" in note for note in found["notes"])
    assert found["host"]["cpus"] >= 1
    assert "launch 10 of 10" in done.stderr


def test_a_device_that_dies_leaves_a_record_and_its_status(tmp_path, monkeypatch):
    null_artifact(tmp_path / "n")
    lost = Interleaved(Side("x", "y", [[1.0, 1.1]]), Side(), "A", DeviceError("the device went away"))
    monkeypatch.setattr(import_module("anynpu.api.compare"), "interleave", lambda *given: lost)
    done = CliRunner().invoke(verb.compare, [str(tmp_path / "n"), str(tmp_path / "n"), "--time", "-f", "json"])
    assert isinstance(done.exception, DeviceError)
    found = json.loads(done.stdout)
    assert found["partial"] and found["failure"] == "the device went away" and found["verdict"] is None
    assert found["latency"]["launches"]["a"] == [[1.0, 1.1]]
