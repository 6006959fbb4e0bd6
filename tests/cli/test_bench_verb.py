"""anynpu bench as users call it: what it prints, what it writes and how it ends."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from anynpu.artifact import Made, Manifest, Step, seal
from anynpu.cli.main import main
from anynpu.errors import DeviceError
from anynpu.runtime.null import NullSession
from anynpu.tensors import Quantization, TensorSpec

X = TensorSpec("x", (1, 6), "int8", quantization=Quantization((0.1,), (0,)))
IMAGE = TensorSpec("image", (1, 8, 8, 3), "float32", "NHWC", "RGB")
QUICK = ("--min-time", "0.05", "--min-count", "5", "--warmup", "1", "-q")


def null(folder, name="null", inputs=(X,)):
    """Returns an artifact that the null device runs."""
    path = folder / name
    path.mkdir()
    (path / "model").write_text(name)
    seal(path, Manifest("null", "model", inputs, (X,), "ab" * 32), Step("null"), Made("2025-01-01", 0.0))
    return path


@pytest.fixture
def bench(capsys):
    """Runs bench in this process and returns status, stdout and stderr."""

    def call(*words):
        status = main(["bench", *map(str, words)])
        return status, *capsys.readouterr()

    return call


@pytest.fixture
def slow(monkeypatch):
    """Makes the null device take 2 ms, so that nothing is timed in batches."""
    quick = NullSession.run

    def run(self, inputs):
        time.sleep(0.002)
        return quick(self, inputs)

    monkeypatch.setattr(NullSession, "run", run)


def test_the_record_and_the_file(bench, tmp_path, slow):
    path = null(tmp_path)
    status, out, err = bench(path, *QUICK, "-f", "json", "-o", tmp_path / "r.json")
    assert status == 0, err
    found = json.loads(out)
    assert found == json.loads((tmp_path / "r.json").read_text())
    assert (found["schema_version"], found["kind"], found["scenario"], found["scope"]) == (
        2,
        "bench",
        "single-stream",
        "infer",
    )
    assert found["complete"] and found["error"] is None and found["path"] == str(path)
    assert len(found["latency"]["samples"]) == len(found["latency"]["started_s"]) == found["runs"] >= 5
    assert found["latency"]["summary"]["median"] >= 2 and list(found["stages"]) == ["run"]
    assert found["host"]["cores_used"] < 0.9 and found["host"]["peak_rss_bytes"] > 1e6


def test_the_text(bench, tmp_path, slow):
    status, out, err = bench(null(tmp_path), *QUICK)
    assert status == 0, err
    for words in ("single-stream, infer:", "cold: load", "median", "needs 662 runs", "cores used:", "energy: "):
        assert words in out
    assert out.count("energy: ") == 1


def test_a_pipeline_with_a_function_at_its_end(bench, tmp_path, slow, monkeypatch):
    (tmp_path / "after_all.py").write_text("def top(outputs):\n    return outputs['x'].argmax()\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    path = null(tmp_path)
    status, out, err = bench(path, *QUICK, "--scope", "pipeline", "--post", "after_all:top", "-f", "json")
    assert status == 0, err
    assert list(json.loads(out)["stages"]) == ["quantise", "run", "dequantise", "post"]


def test_a_pipeline_from_a_picture(bench, tmp_path, slow):
    pillow = pytest.importorskip("PIL.Image")
    pillow.fromarray(np.zeros((20, 30, 3), np.uint8)).save(tmp_path / "p.png")
    path = null(tmp_path, inputs=(IMAGE,))
    words = [path, *QUICK, "--scope", "pipeline", "-i", tmp_path / "p.png"]
    status, out, err = bench(*words, "-P", "size=8x8", "-P", "resize=stretch", "-P", "channels=RGB", "-f", "json")
    assert status == 0, err
    assert list(json.loads(out)["stages"])[:2] == ["preprocess", "quantise"]


def test_an_image_is_preprocessed_as_the_card_says(bench, tmp_path):
    image = pytest.importorskip("PIL.Image")
    image.new("RGB", (20, 10), (255, 0, 0)).save(tmp_path / "p.png")
    words = ["--scope", "pipeline", "-i", tmp_path / "p.png", *QUICK, "-f", "json"]
    status, _, err = bench(null(tmp_path, "plain", (IMAGE,)), *words)
    assert status == 2 and "not stated" in err
    path = tmp_path / "carded"
    path.mkdir()
    (path / "model").write_text("carded")
    task = {"kind": "classify", "preprocess": {"size": [8, 8], "resize": "stretch", "channels": "RGB"}}
    manifest = Manifest("null", "model", (IMAGE,), (X,), "ab" * 32, task=task)
    seal(path, manifest, Step("null"), Made("2025-01-01", 0.0))
    status, out, err = bench(path, *words)
    assert status == 0, err
    assert next(iter(json.loads(out)["stages"])) == "preprocess"


@pytest.mark.parametrize(("bound", "expected", "words"), [(500, 0, "bound kept"), (0.01, 1, "bound NOT kept")])
def test_a_bound_decides_the_exit_status(bench, tmp_path, slow, bound, expected, words):
    server = ("--scenario", "server", "--qps", 100, "--bound", bound, "--percentile", 50)
    status, out, err = bench(null(tmp_path), *QUICK, *server)
    assert status == expected and words in out, out + err


def test_several_models(bench, tmp_path, slow):
    a, b = null(tmp_path, "a"), null(tmp_path, "b")
    status, out, err = bench(a, "--with", b, *QUICK)
    assert status == 0 and "several models at once" in out and str(b) in out, err


def test_a_device_that_dies_keeps_what_was_measured(bench, tmp_path, monkeypatch):
    runs = []

    def run(self, inputs):
        runs.append(1)
        if len(runs) > 40:
            raise DeviceError("the device does not answer", cause="it lost its power")
        time.sleep(0.001)
        return {"x": np.zeros((1, 6), np.int8)}

    monkeypatch.setattr(NullSession, "run", run)
    status, out, err = bench(null(tmp_path), "-n", 500, "--warmup", 1, "-q", "-f", "json", "-o", tmp_path / "r.json")
    found = json.loads(out)  # one document, not one more for the error
    assert status == 6 and "the device does not answer" in err and "it lost its power" in err
    assert found["complete"] is False and found["error"]["kind"] == "DeviceError" and found["runs"] == 33
    assert json.loads((tmp_path / "r.json").read_text()) == found
    runs.clear()
    status, out, _ = bench(tmp_path / "null", "-n", 500, "--warmup", 1, "-q")
    assert status == 6 and "INCOMPLETE after 33 runs: the device does not answer" in out


def test_an_interrupted_bench_keeps_what_was_measured(tmp_path):
    words = [sys.executable, "-m", "anynpu", "bench", str(null(tmp_path)), "--min-time", "50", "--warmup", "1"]
    with subprocess.Popen(
        [*words, "-f", "json"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=os.environ
    ) as child:
        for line in child.stderr:
            if "warm-up" in line:
                break
        time.sleep(0.7)
        child.send_signal(signal.SIGINT)
        out, err = child.communicate(timeout=60)
    found = json.loads(out)
    assert child.returncode == 130 and "interrupted" in err
    assert not found["complete"] and found["error"]["kind"] == "Interrupted" and found["runs"] > 10


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--scenario", "server", "--qps", "-3"], "--qps -3"),
        (["--bound", "5"], "--bound belongs to the scenario server"),
        (["--scenario", "server"], "needs the queries a second"),
        (["--energy-csv", "none.csv"], "none.csv: no such file"),
        (["--energy-window", "1,2"], "--energy-window needs --energy-csv"),
        (["--energy-csv", "m.csv", "--energy-window", "2,2"], "a window must have a length"),
        (["--min-time", "5", "--max-time", "1"], "under the minimum"),
        (["--post", "x:y"], "belong to --scope pipeline"),
        (["--scope", "pipeline", "--post", "no_such_module:y"], "--post no_such_module:y"),
        (["-i", "p.png"], "--scope pipeline only"),
        (["-o", "no/such/folder/r.json"], "no such folder"),
        (["--with", "gone"], "gone"),
        (["--with", "null", "--scenario", "offline"], "measured single-stream"),
    ],
)
def test_bad_requests_are_refused_in_one_sentence(bench, tmp_path, monkeypatch, words, said):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "m.csv").write_text("time,watts\n0,1\n1,2\n")
    status, out, err = bench(null(tmp_path), "-q", *words)
    assert (status == 2 or words[0] == "--with") and status in (2, 8) and out == "" and said in err, err


def test_bodies_that_are_none(bench, tmp_path):
    (tmp_path / "b.json").write_text("{")
    for name, said in (("b.json", "not valid JSON"), ("none.json", "No such file")):
        status, _, err = bench("http://127.0.0.1:9/v1/embeddings", "--body", tmp_path / name, "-q")
        assert status == 2 and said in err
