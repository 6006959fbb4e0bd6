"""Every zoo model, through the command line, to int8 and int16: close to float, and the runtimes agree."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from zoo_flags import LARGE, flags

from anynpu.artifact import Artifact
from anynpu.runtime.base import choose
from anynpu.source import zoo

for package in ("torch", "tflite_micro"):
    pytest.importorskip(package)

MODELS = zoo.names()


def build(anywhere, folder: Path, *arguments: str) -> dict:
    """Builds through the command line and returns the report."""
    done = anywhere("build", "-o", str(folder), "--overwrite", "-q", *arguments, timeout=900)
    assert done.returncode == 0, done.stderr + done.stdout
    return json.loads((folder / "report.json").read_text())


@pytest.fixture(scope="module", params=MODELS)
def int8(request, tmp_path_factory, anywhere):
    folder = tmp_path_factory.mktemp(request.param) / "int8"
    return request.param, folder, build(anywhere, folder, *flags(request.param), "-t", "cpu,tflm")


def chip(report: dict, name: str) -> dict:
    return next(c for c in report["chips"] if c["chip"] == name)


def difference(anywhere, folder: Path, target: str, name: str) -> float:
    """Returns by how much an artifact scores above the float model on a thousand samples."""
    scored = [str(folder / target), "--against", str(folder / "float"), "--data", f"zoo:{name}", "--limit", "1000"]
    done = anywhere("eval", *scored, "-f", "json", timeout=900)
    assert done.returncode == 0, done.stderr + done.stdout
    return json.loads(done.stdout)["against"]["difference"]["value"]


@pytest.mark.timeout(900)
def test_int8_is_close_to_float_and_int16_closer(int8, tmp_path, anywhere):
    name, folder, report = int8
    for target in ("cpu", "tflm"):
        proof = chip(report, target)["verification"]
        assert proof["held_out"] and proof["samples"] >= (8 if name == LARGE else 50)
        assert proof["sqnr_db"] >= 30, f"{name} on {target}: {proof['sqnr_db']:.1f} dB"
        one_point = max(0.01, 1 / proof["samples"])  # of fifty samples, one is two points
        if abs(proof["score"] - proof["score_float"]) > one_point + 1e-9:  # two of a hundred may be chance
            assert abs(difference(anywhere, folder, target, name)) <= 0.01, f"{name} on {target}: {proof}"
    wide = build(anywhere, tmp_path / "int16", *flags(name), "-t", "tflm", "-O", "activations=int16")
    assert chip(wide, "tflm")["verification"]["sqnr_db"] > chip(report, "tflm")["verification"]["sqnr_db"]


def test_litert_reference_kernels_are_within_two_steps_of_tflite_micro(int8):
    name, folder, _ = int8
    artifact = Artifact.open(folder / "tflm")
    sessions = [choose("tflite", device)(artifact) for device in ("tflm", "litert")]
    spec = artifact.manifest.inputs[0]
    rng = np.random.default_rng(0)
    count = 2 if name == LARGE else 16
    worst = 0
    for _ in range(count):
        sample = {spec.name: rng.integers(-128, 128, spec.shape).astype(spec.dtype)}
        first, second = (session.run(sample) for session in sessions)
        for output in artifact.manifest.outputs:
            difference = first[output.name].astype(int) - second[output.name].astype(int)
            worst = max(worst, int(np.abs(difference).max()))
    assert worst <= 2


def test_the_same_build_again_takes_every_step_from_the_store(int8, anywhere):
    name, folder, _ = int8
    again = build(anywhere, folder, *flags(name), "-t", "cpu,tflm")
    assert again["timings"] and all(stage["cached"] for stage in again["timings"])
