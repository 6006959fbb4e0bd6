"""Null and cpu end to end on a small ONNX model, through the command line, in seconds and without torch."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from anynpu.artifact import Artifact
from anynpu.testing import models


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the model, samples and one input."""
    folder = tmp_path_factory.mktemp("tiny")
    models.save(models.conv_net(), folder / "net.onnx")
    images = np.random.default_rng(7).normal(0, 1, (60, 3, 8, 8)).astype(np.float32)
    np.savez(folder / "x.npz", image=images)
    np.save(folder / "one.npy", images[:1])
    return folder


@pytest.fixture(scope="module")
def tiny(home: Path, session_cache: Path):
    """Calls anynpu as users do, in that folder with a cache of its own, with no way to import torch."""
    (home / "without").mkdir()
    (home / "without" / "torch.py").write_text("raise ImportError('this test needs no torch')\n")
    places = {"ANYNPU_CACHE_DIR": str(home / "cache"), "PYTHONPATH": str(home / "without")}

    def call(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "anynpu", *arguments],
            cwd=home,
            env={**os.environ, **places},
            capture_output=True,
            text=True,
            timeout=120,
        )

    return call


BUILD = ("build", "-m", "net.onnx", "-t", "null,cpu", "--data", "x.npz", "-o", "out")


@pytest.fixture(scope="module")
def built(tiny, home) -> dict:
    """The report of one build; every test below looks at it."""
    done = tiny(*BUILD)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    return json.loads((home / "out" / "report.json").read_text())


def test_build_reports_both_chips(built):
    null, cpu = built["chips"]
    assert (built["kind"], built["exit_status"]) == ("build", 0)
    assert (null["chip"], null["status"], null["verification"]) == ("null", "not executed", None)
    assert null["not_verified"] == "the null device computes nothing"
    assert (cpu["chip"], cpu["status"]) == ("cpu", "ok")
    proof = cpu["verification"]
    assert proof["executed"].startswith("ONNX Runtime on this host's CPU (")
    assert (proof["samples"], proof["held_out"]) == (12, True)
    assert 20 < proof["sqnr_db"] < 80, "int8 is close to the float model and not equal to it"
    assert proof["cosine"] > 0.99


def test_the_report_says_what_was_asked_and_what_it_was_made_of(built, home):
    assert built["request"]["source"]["model"] == "net.onnx"
    assert built["data"]["calibration"]["samples"] == 48
    assert built["data"]["calibration"]["random"] is False
    assert built["model"]["estimates"]["macs"] == 8 * 8 * 8 * 27 + 16 * 4 * 4 * 72 + 64
    assert built["model"]["estimates"]["parameters"] == 8 * 27 + 8 + 16 * 72 + 16 + 64 + 4
    fingerprints = {built["model"]["fingerprint"], *(a["fingerprint"] for c in built["chips"] for a in c["chain"])}
    assert len(fingerprints) == 1
    cpu = built["chips"][1]["chain"][-1]
    assert cpu["step"]["inputs"]["model"] == built["model"]["digest"]
    assert cpu["step"]["inputs"]["data"] == built["data"]["calibration"]["digest"]
    assert {"onnx", "onnxruntime", "anynpu"} <= set(cpu["step"]["tools"])
    assert {"name": "bias-correction", "changed": 3} in cpu["passes"]
    assert [each["name"] for each in built["model"]["passes"]][:10] == [
        "end",
        "fix",
        "maps",
        "inference",
        "varying",
        "qdq",
        "dynamic",
        "float32",
        "fused",
        "static",
    ]
    assert cpu["details"]["quantisation"]["float_operators"] == []
    text = (home / "out" / "report.md").read_text()
    assert "cpu" in text and "null" in text


def test_the_output_folder_holds_sound_artifacts(built, home):
    for name, digest in (
        ("float", built["model"]["digest"]),
        ("cpu", built["chips"][1]["chain"][-1]["digest"]),
        ("null", built["chips"][0]["chain"][-1]["digest"]),
    ):
        artifact = Artifact.open(home / "out" / name)
        artifact.verify()
        assert artifact.digest == digest


def test_a_second_build_finds_every_step(tiny, built, home):
    done = tiny(*BUILD, "-f", "json")
    assert done.returncode == 0, done.stderr
    again = json.loads(done.stdout)
    assert [step["stage"] for step in again["timings"]] == [step["stage"] for step in built["timings"]]
    assert all(step["cached"] for step in again["timings"])
    assert not any(step["cached"] for step in built["timings"])
    assert [c["chain"] for c in again["chips"]] == [c["chain"] for c in built["chips"]]
    assert [c["verification"] for c in again["chips"]] == [c["verification"] for c in built["chips"]]
    assert len(list(home.glob("out.backup-*"))) == 1, "the earlier output is kept"


def test_run_gives_nearly_the_float_results(tiny, built, home):
    values = {}
    for name in ("float", "cpu", "null"):
        done = tiny("run", f"out/{name}", "-i", "one.npy", "-o", f"{name}.npz", "-f", "json")
        assert done.returncode == 0, done.stderr
        shown = json.loads(done.stdout)["outputs"]["scores"]
        values[name] = np.load(home / f"{name}.npz")["scores"]
        assert shown["shape"] == [1, 4]
        np.testing.assert_allclose(shown["values"], values[name].ravel(), rtol=1e-6)
    spread = np.abs(values["float"]).max()
    assert 0 < np.abs(values["cpu"] - values["float"]).max() < 0.05 * spread
    assert not values["null"].any()


def test_compare_agrees_and_can_disagree(tiny, built):
    same = tiny("compare", "out/float", "out/cpu", "--data", "x.npz", "-f", "json")
    assert same.returncode == 0, same.stderr
    found = json.loads(same.stdout)["outputs"]["scores"]
    assert 20 < found["sqnr_db"] < 80
    strict = tiny("compare", "out/float", "out/cpu", "--data", "x.npz", "--min-sqnr", "100")
    assert (strict.returncode, "different" in strict.stdout) == (1, True)
    nothing = tiny("compare", "out/float", "out/null", "--data", "x.npz")
    assert nothing.returncode == 1, "zeros are no result"


def test_show_tells_of_model_and_artifact(tiny, built):
    model = tiny("show", "net.onnx")
    assert model.returncode == 0, model.stderr
    assert "1x3x8x8" in model.stdout and "NCHW" in model.stdout and "2 Conv" in model.stdout
    assert built["model"]["fingerprint"] in model.stdout
    artifact = json.loads(tiny("show", "out/cpu", "-f", "json").stdout)
    assert artifact["format"] == "onnx-ort"
    assert artifact["digest"] == built["chips"][1]["chain"][-1]["digest"]


def test_check_finds_nothing_in_the_way(tiny, built):
    done = tiny("check", "-m", "net.onnx", "-t", "null,cpu", "-f", "json")
    assert done.returncode == 0, done.stderr
    assert [(c["chip"], c["findings"], c["error"]) for c in json.loads(done.stdout)["chips"]] == [
        ("null", [], None),
        ("cpu", [], None),
    ]


def test_cache_lists_verifies_and_sees_damage(tiny, built, home):
    rows = json.loads(tiny("cache", "ls", "-f", "json").stdout)["entries"]
    assert {"import", "data", "null", "cpu", "verify"} <= {row["step"] for row in rows}
    sound = tiny("cache", "verify")
    assert (sound.returncode, "0 damaged" in sound.stdout) == (0, True), sound.stderr
    victim = next(path for path in (home / "cache" / "store").rglob("model.null"))
    whole = victim.read_bytes()
    victim.write_bytes(whole[:-2] + b"?\n")
    damaged = tiny("cache", "verify")
    victim.write_bytes(whole)
    assert (damaged.returncode, "1 damaged" in damaged.stdout) == (8, True)


def test_mistakes_are_told_in_one_sentence(tiny, built):
    for arguments, status, sentence in (
        (("build", "-m", "net.onnx", "-t", "cpuu", "--data", "x.npz", "-o", "o"), 2, "did you mean 'cpu'?"),
        (("build", "-m", "nett.onnx", "-t", "cpu", "--data", "x.npz", "-o", "o"), 2, "no such model"),
        (("build", "-m", "net.onnx", "-t", "cpu", "-o", "o"), 2, "--data"),
        (("run", "out/cpu", "-i", "net.onnx"), 2, "no such kind of input"),
        (("run", "out", "-i", "one.npy"), 2, "no manifest.json"),
    ):
        done = tiny(*arguments)
        assert (done.returncode, sentence in done.stdout + done.stderr) == (status, True), (arguments, done.stderr)
        assert "Traceback" not in done.stderr
