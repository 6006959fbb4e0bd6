"""Every zoo model and MiniLM through the real TPU-MLIR, proven on its simulators: `make test-cvi`."""

from __future__ import annotations

import json

import pytest

from anynpu.artifact import Artifact
from anynpu.testing import conformance, models

# SQNR in dB that INT8 must reach, about a dB below what TPU-MLIR 1.30.2 gave.
FLOORS = {"hello": 34, "resnet8": 30, "kws": 30, "vww": 30, "autoencoder": 38, "detector": 34}
BM_FLOORS = FLOORS | {"hello": 31.5}
ONE_POINT = 0.01


def sqnr(chip):
    return min(output["sqnr_db"] for output in chip["verification"]["outputs"].values())


@pytest.mark.parametrize("model", FLOORS)
def test_the_zoo_in_int8_on_cv180x(built, model):
    pytest.importorskip("torch")
    chip = built("-m", f"zoo:{model}", "-t", "cv180x", "--limit", 128)
    proof = chip["verification"]
    assert proof["device"] == "cvi"
    assert sqnr(chip) >= FLOORS[model]
    assert proof["score"] >= proof["score_float"] - ONE_POINT - 1 / 128  # a sample more or less says nothing
    assert chip["receipt"]["share"] == 1.0


@pytest.mark.parametrize("model", BM_FLOORS)
def test_the_zoo_in_int8_on_bm1684x(built, model):
    pytest.importorskip("torch")
    chip = built("-m", f"zoo:{model}", "-t", "bm1684x", "--limit", 50)
    assert sqnr(chip) >= BM_FLOORS[model]
    assert (
        chip["verification"]["score"] >= chip["verification"]["score_float"] - ONE_POINT - 1 / 50
    )  # a sample of fifty
    assert chip["estimates"]["cycles"] > 0


@pytest.mark.parametrize(
    ("target", "format", "floor"),
    [
        ("cv180x", "bf16", 40),
        ("bm1684x", "f16", 50),
        ("bm1684x", "bf16", 35),
        ("bm1688", "f16", 50),
        ("cv181x", "bf16", 35),
    ],
)
def test_floats_come_nearer(built, target, format, floor):
    pytest.importorskip("torch")
    chip = built("-m", "zoo:kws", "-t", target, "-O", f"quantize={format}", "--limit", 50)
    assert sqnr(chip) >= floor


@pytest.mark.parametrize("target", ["cv181x", "cv182x", "cv183x", "bm1688"])
def test_the_other_chips_take_the_small_net(built, tmp_path, target):
    models.onnx_artifact(models.conv_net(), tmp_path / "model")
    model = str(next((tmp_path / "model").glob("*.onnx")))
    chip = built("-m", model, "-t", target, "--data", "random:64", "--limit", 50)
    assert sqnr(chip) >= 25


@pytest.mark.parametrize(
    ("target", "options"),
    [
        ("bm1684x", ["dynamic=true"]),
        ("bm1684x", ["dynamic=true", "quantize=f16"]),
        ("cv180x", ["search=threshold"]),
        ("cv180x", ["pixel_format=rgb", "resize_dims=8,8", "keep_aspect_ratio=true", "excepts=scores_Gemm"]),
    ],
)
def test_options_are_taken_by_the_real_programs(built, tmp_path, target, options):
    model = str(models.onnx_artifact(models.conv_net(), tmp_path / "model").main)
    given = [word for option in options for word in ("-O", option)]
    chip = built("-m", model, "-t", target, "--data", "random:64", *given, "--limit", 12)
    assert sqnr(chip) >= 25


def test_minilm_is_good_in_bf16_and_refused_in_int8(built, minilm):
    pytest.importorskip("torch")
    words = (*minilm, "-t", "cv180x", "--require-npu", "99%", "--limit", 10)  # the look-up of words stays on the CPU
    assert sqnr(built(*words, "-O", "quantize=bf16")) >= 35
    assert built(*words, out="int8", status=7)["error"]["kind"] == "AccuracyError"


def test_a_search_for_mixed_precision_comes_nearer(built):
    pytest.importorskip("torch")
    plain = built("-m", "zoo:kws", "-t", "cv180x", "--limit", 64)
    mixed = built("-m", "zoo:kws", "-t", "cv180x", "-O", "search=mixed", "-O", "search_cosine=0.9999", "--limit", 64)
    assert sqnr(mixed) > sqnr(plain)


def test_what_was_built_keeps_every_rule_of_a_session(built, tmp_path):
    from anynpu.runtime.cvi import CviSession

    source = models.onnx_artifact(models.conv_net(), tmp_path / "model")
    built("-m", str(source.main), "-t", "cv180x", "--data", "random:64", "--limit", 64)
    made = Artifact.open(tmp_path / "out" / "cv180x")
    conformance.check_session(CviSession, made, tmp_path / "session", reference=source, min_sqnr_db=20)


def test_an_edited_quantisation_is_what_the_compiler_stores(built, tmp_path):
    """TPU-MLIR's own file says at which scale it stores a tensor; cutting one off costs what it must."""
    pytest.importorskip("torch")
    words = ("-m", "zoo:resnet8", "-t", "cv181x", "--limit", 60)
    plain = sqnr(built(*words))
    tensors = json.loads((tmp_path / "out" / "cv181x" / "quantisation.json").read_text())["tensors"]
    name = next(each for each in tensors if each.endswith("body.1/relu/Clip_output_0"))
    assert tensors[name]["scale"] == [pytest.approx(6 / 127)] and tensors[name]["dtype"] == "int8"
    (tmp_path / "edited.json").write_text(json.dumps({"tensors": {name: {"range": [0, 3]}}}))
    edited = built(*words, "-O", "quantisation=edited.json", "-O", "tolerance=0.5", out="edited")
    assert sqnr(edited) < plain - 5
    stored = json.loads((tmp_path / "edited" / "cv181x" / "quantisation.json").read_text())["tensors"]
    assert stored[name]["scale"] == [pytest.approx(3 / 127)] and stored[name]["origin"] == "stated"
