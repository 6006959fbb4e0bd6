"""`anynpu diagnose`, and the diagnosis that a build makes by itself when its gate fails."""

from __future__ import annotations

import json

import numpy as np
import onnx
import pytest
from sick import Net, joined_scales, samples

from anynpu.records.load import load

pytest.importorskip("onnxruntime")
pytest.importorskip("ai_edge_litert")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A detector that joins pixels and scores under one scale: nothing of the scores is left in 8 bits."""
    home = tmp_path_factory.mktemp("sick")
    np.savez(home / "data.npz", **joined_scales(home))
    return home


@pytest.fixture(scope="module")
def built(folder, anywhere):
    out = folder / "out"
    names = ["-m", folder / "net.onnx", "-t", "cpu,tflite", "--data", folder / "data.npz", "-o", out, "--no-repair"]
    return anywhere("build", *map(str, names)), out


def test_a_build_that_fails_its_gate_says_why(built):
    done, out = built
    assert done.returncode == 7
    assert done.stdout.count("cause: unlike branches under one scale at joined: ") == 2
    record = load(json.loads((out / "report.json").read_text()), "report")
    for chip in record.chips:
        assert [cause.cause for cause in chip.diagnosis.causes] == ["unlike branches under one scale"]


def test_the_verb_says_the_same_with_the_error_of_each_tensor(built, cli):
    _, out = built
    done = cli("diagnose", str(out), "-f", "json")
    assert done.returncode == 1, done.stderr
    for chip in json.loads(done.stdout)["chips"]:
        found = chip["diagnosis"]
        losses = {loss["tensor"]: loss for loss in found["tensors"]}
        assert [cause["tensor"] for cause in found["causes"]] == ["joined"] and not found["healthy"]
        assert losses["seen"]["sqnr_db"] > 25 and losses["joined"]["step"] > 1
    shown = cli("diagnose", str(out), "-t", "tflite", "--top", "3")
    assert shown.returncode == 1 and "tflite: sick: the worst output, joined" in shown.stdout
    assert "what helps: make the branches outputs of their own" in shown.stdout and "cpu" not in shown.stdout


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["nowhere"], "holds no report.json"),
        (["OUT", "-t", "tflm"], "was not built for tflm"),
        (["OUT", "--top", "0"], "0 is not in the range"),
    ],
)
def test_what_it_is_not_for(built, cli, arguments, words):
    done = cli("diagnose", *(str(built[1]) if text == "OUT" else text for text in arguments))
    assert done.returncode == 2 and words in done.stderr


def test_a_model_that_tflite_micro_lacks_an_operator_for_is_diagnosed(tmp_path, anywhere, cli):
    net = Net()
    seen = net("Conv", "x", net.weights(8, 4, 3, 3), kernel_shape=[3, 3], name="stem")
    half = net("Mul", seen, np.array([0.5]))
    error = net("Add", net("Erf", net("Div", seen, np.array([np.sqrt(2.0)]))), np.array([1.0]))
    net("Conv", net("Mul", half, error, name="gelu"), net.weights(4, 8, 1, 1), name="last")
    data = samples(0, 4, 8, 8, count=40)
    onnx.save(net.model(data), tmp_path / "net.onnx")
    np.savez(tmp_path / "data.npz", **data)
    names = ["-m", tmp_path / "net.onnx", "-t", "tflite", "--data", tmp_path / "data.npz", "-o", tmp_path / "out"]
    assert anywhere("build", *map(str, names)).returncode == 0
    done = cli("diagnose", str(tmp_path / "out"), "-f", "json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)["chips"][0]["diagnosis"]
    assert found["healthy"] and found["tensors"] and any("TFLite-Micro" in note for note in found["notes"])
