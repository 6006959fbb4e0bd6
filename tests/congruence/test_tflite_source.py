"""A .tflite file as the model: imported, refused or built, and what the record says it was compared with."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest
from tflite_builder import Builder
from tflite_builder import schema as tflite

from anynpu import plugins, tool
from anynpu.artifact import Manifest
from anynpu.cli.main import main
from anynpu.errors import ConfigError, IntegrityError, Unsupported
from anynpu.pipeline import tflite_source
from anynpu.pipeline.planner import chain, check_options
from anynpu.runtime.litert import open_interpreter
from anynpu.runtime.tflite_file import operator_names, read_model
from anynpu.source.load import ModelSource, Proof
from anynpu.targets.tflite import for_npu

SHAPE = (1, 8, 8, 2)
DATA = os.environ.get("ANYNPU_TEST_DATA", "")


def net(path: Path, dtype: str, weights: str | None = None) -> Path:
    """Writes a convolution, a pooling and a dense layer; weights that are stored apart make it a dynamic-range file."""
    b = Builder()
    x = b.input(SHAPE, dtype, name="image", **({"scale": 0.02, "zero_point": 3} if dtype == "int8" else {}))
    made = b.conv(x, "conv", SHAPE, 4, dtype=dtype, weights=weights, relu=True)
    pooled = b.tensor("pool", (1, 4, 4, 4), dtype)
    size = {"filterWidth": 2, "filterHeight": 2, "strideW": 2, "strideH": 2}
    b.operator("MAX_POOL_2D", [made], [pooled], options="Pool2DOptions", padding=tflite.Padding.VALID, **size)
    flat = b.operator("RESHAPE", [pooled, b.constant("shape", [1, 64])], [b.tensor("flat", (1, 64), dtype)])
    values = np.random.default_rng(1).integers(-9, 9, (3, 64))
    dense = b.tensor("dense", values.shape, weights or ("float32" if dtype == "float32" else "int8"), values, 0.01)
    scores = b.tensor("scores", (1, 3), dtype, scale=2.0)
    b.operator("FULLY_CONNECTED", [flat, dense, -1], [scores], options="FullyConnectedOptions")
    return b.write(path)


@pytest.fixture
def imported(tmp_path, monkeypatch):
    """Imports a file in this process, without samples, and returns its manifest and proof."""
    monkeypatch.setattr(tool, "ask", lambda manifest: [])

    def call(path: Path, **more) -> tuple[Manifest, Proof]:
        (tmp_path / "out").mkdir(exist_ok=True)
        answer = tflite_source.import_and_prove(ModelSource(str(path), **more), str(tmp_path / "out"))
        return answer.manifest, answer.proof

    return call


def test_a_manifest_says_what_the_file_says(imported, tmp_path):
    manifest, _ = imported(net(tmp_path / "m.tflite", "int8"))
    [image], [scores] = manifest.inputs, manifest.outputs
    assert (manifest.format, image.layout, image.dtype, image.shape) == ("tflite-given", "NHWC", "int8", SHAPE)
    assert image.quantization.zero_point == (3,) and scores.quantization.scale == (2.0,)
    assert manifest.estimates.macs == 8 * 8 * 4 * 9 * 2 + 64 * 3
    assert manifest.estimates.parameters == 4 * 9 * 2 + 4 + 64 * 3
    assert manifest.details["operators"] == {"CONV_2D": 1, "FULLY_CONNECTED": 1, "MAX_POOL_2D": 1, "RESHAPE": 1}
    assert manifest.details["output_operators"] == {"scores": "FULLY_CONNECTED"}
    assert manifest.details["degenerate"] == [] and manifest.notes == ("given as an int8 model",)


def test_names_do_not_reach_the_fingerprint_and_weights_do(imported, tmp_path):
    path = net(tmp_path / "m.tflite", "int8")
    first, _ = imported(path)
    path.write_bytes(path.read_bytes().replace(b"scores", b"result"))
    renamed, _ = imported(path)
    other, _ = imported(net(tmp_path / "n.tflite", "float32"))
    assert first.fingerprint == renamed.fingerprint != other.fingerprint


@pytest.mark.parametrize("chip", ["ethos-u55-256", "ethos-u85-256"])
def test_a_layer_without_a_bias_is_written_for_an_npu(chip, tmp_path):
    path = net(tmp_path / "m.tflite", "float32")
    assert for_npu(path, chip) in (None, path.read_bytes())


def test_frames_of_a_sound_are_gathered_on_an_npu_as_litert_does(tmp_path):
    b = Builder()
    places = 2 * np.arange(5)[:, np.newaxis] + np.arange(3)
    x = b.input((12, 4), "float32")
    frames = b.tensor("frames", (5, 3, 4), "float32")
    b.operator("GATHER", [x, b.constant("places", places)], [frames], options="GatherOptions", axis=0)
    path = b.write(tmp_path / "m.tflite")
    rewritten = for_npu(path, "ethos-u55-256")
    assert rewritten is not None and "GATHER" not in operator_names(read_model(rewritten))
    values, answers = np.random.default_rng(0).normal(size=(12, 4)).astype(np.float32), []
    for content in (rewritten, path.read_bytes()):
        interpreter = open_interpreter(content)
        interpreter.set_tensor(interpreter.get_input_details()[0]["index"], values)
        interpreter.invoke()
        answers.append(interpreter.get_tensor(interpreter.get_output_details()[0]["index"]))
    assert np.array_equal(*answers) and np.array_equal(answers[0], values[places])


def test_a_dynamic_range_file_is_widened_and_says_how_far_its_own_kernels_are(imported, tmp_path):
    manifest, proof = imported(net(tmp_path / "m.tflite", "float32", "int8"))
    assert manifest.format == "tflite-float" and "taken as the float32 that they stand for" in manifest.notes[0]
    [note] = proof.notes
    assert "dB from the float model here" in note


def test_a_float_file_that_ignores_its_input_is_found(imported, tmp_path):
    b = Builder()
    x = b.input((1, 4), "float32")
    zero = b.binary("MUL", x, b.constant("zero", np.zeros((1, 4)), "float32"), "none", (1, 4), "float32")
    b.binary("ADD", zero, b.constant("one", np.ones((1, 4)), "float32"), "out", (1, 4), "float32")
    manifest, _ = imported(b.write(tmp_path / "m.tflite"))
    assert [f["rule"] for f in manifest.details["degenerate"]] == ["degenerate-output"]


def test_a_custom_operator_that_litert_lacks_is_named(imported, tmp_path):
    b = Builder()
    b.unary("TANH", b.input((1, 4), "float32"), "out", (1, 4), "float32")
    b.codes[0].builtinCode = b.codes[0].deprecatedBuiltinCode = tflite.BuiltinOperator.CUSTOM
    b.codes[0].customCode = "MyOwnOp"
    with pytest.raises(Unsupported, match="operator MyOwnOp is a custom one") as error:
        imported(b.write(tmp_path / "m.tflite"))
    assert error.value.findings[0].rule == "custom"


def test_shapes_that_litert_finds_wrong_are_an_error_of_the_file(imported, tmp_path):
    b = Builder()
    x = b.input((1, 4), "float32")
    b.binary("ADD", x, b.constant("three", np.zeros((1, 3)), "float32"), "out", (1, 4), "float32")
    with pytest.raises(IntegrityError, match="LiteRT refuses the model"):
        imported(b.write(tmp_path / "m.tflite"))


def test_an_open_axis_needs_a_shape_and_takes_one(imported, tmp_path):
    b = Builder()
    b.unary("TANH", b.input((1, 1, 2), "float32", name="x"), "out", (1, 1, 2), "float32")
    b.tensors[0].shapeSignature = [-1, -1, 2]
    path = b.write(tmp_path / "m.tflite")
    with pytest.raises(ConfigError, match=r"axes \[1\] are left open") as error:
        imported(path)
    assert "--shape x=1,..." in error.value.hint
    manifest, proof = imported(path, shapes={"x": (1, 7, 2)})
    assert manifest.inputs[0].shape == manifest.outputs[0].shape == (1, 7, 2) and not proof.notes
    with pytest.raises(ConfigError, match=r"--shape x=1,7,3: the file says \[1, 1, 2\]"):
        imported(path, shapes={"x": (1, 7, 3)})


@pytest.mark.parametrize("format", ["tflite-float", "tflite-given"])
def test_chains_enter_where_the_file_is(format):
    first = "tflite" if format == "tflite-float" else "tflite_given"
    for chip, rest in {"tflm": [], "tflite": [], "cortex-m4": ["mcu_c"], "ethos-u55-128": ["vela"]}.items():
        assert [t.name for t in chain(plugins.platform(chip), format)] == [first, *rest]
    for chip in ("cpu", "rk3588", "zhouyi-z3", "hexagon-v73", "max78000"):
        with pytest.raises(Unsupported, match=rf"^{chip} is compiled from ONNX") as error:
            chain(plugins.platform(chip), format)
        assert "tflite, tflm" in error.value.hint and "cortex-m4" in error.value.hint


def test_a_quantised_file_has_no_options_of_a_quantiser():
    with pytest.raises(ConfigError, match="-O method: no such option") as error:
        check_options([plugins.platform("tflm")], {"method": "mse"}, "tflite-given")
    assert "keeps its own scales" in error.value.hint


def build(tmp_path: Path, path: Path, chips: str, *more: str) -> tuple[int, dict]:
    out = tmp_path / "build"
    status = main(["build", "-m", str(path), "-t", chips, "-o", str(out), "--overwrite", "-q", *more])
    return status, json.loads((out / "report.json").read_text())


def test_an_int8_file_is_built_with_its_own_integers(tmp_path, monkeypatch):
    monkeypatch.setenv("ANYNPU_CACHE_DIR", str(tmp_path / "cache"))
    path = net(tmp_path / "m.tflite", "int8")
    stored = np.random.default_rng(0).integers(-128, 128, (20, *SHAPE[1:])).astype(np.int8)
    np.save(tmp_path / "stored.npy", stored)
    status, record = build(tmp_path, path, "tflm,tflite,cpu", "--data", str(tmp_path / "stored.npy"))
    micro, lite, cpu = record["chips"]
    assert (status, micro["status"], lite["status"], cpu["status"]) == (3, "ok", "ok", "Unsupported")
    assert (tmp_path / "build" / "tflm" / "model.tflite").read_bytes() == path.read_bytes()
    proof = micro["verification"]
    assert proof["samples"] == 20 and proof["reference"] == "the given int8 model in LiteRT"
    assert not any("compared with itself" in note for note in proof.get("notes", ()))
    assert any("compared with itself" in note for note in lite["verification"]["notes"])
    assert "given quantised" in micro["graph"]["notes"][0]
    page = (tmp_path / "build" / "report.html").read_text()
    assert "against the given int8 model in LiteRT" in page and "against the float model" not in page


@pytest.mark.skipif(not DATA, reason="ANYNPU_TEST_DATA names no folder with the MLPerf Tiny models")
@pytest.mark.parametrize("name", ["ad01_int8", "kws_ref_model", "kws_ref_model_float32", "pretrainedResnet_quant"])
def test_models_of_mlperf_tiny_are_imported(imported, name):
    manifest, _ = imported(Path(DATA) / "mlperf_tiny" / f"{name}.tflite")
    assert manifest.format == ("tflite-float" if name.endswith("float32") else "tflite-given")
    assert manifest.estimates.macs > 100_000 and not manifest.details["degenerate"]
