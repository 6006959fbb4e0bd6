"""The one quantisation as TPU-MLIR gets it: ranges in its table, repairs in its model, and what it made of them."""

from __future__ import annotations

import json

import numpy as np
import onnx
import pytest
from fake_tpu_mlir import seen, write_tool
from onnx import numpy_helper

from anynpu import plugins, schema
from anynpu.errors import ConfigError
from anynpu.quantize.calibration import Dataset
from anynpu.quantize.qdq import Dialect, but_before_rectifiers, prepare, rounded_everywhere, settle
from anynpu.records.quantisation import FILE, Quantisation
from anynpu.targets.cvi import Cvi
from anynpu.targets.cvi.mlir import Result, results
from anynpu.targets.cvi.quantise import TpuPlan
from anynpu.testing import models

CHIP = plugins.platform("cv180x")
REAL = """
    %0 = "top.Input"(%arg0) {channel_format = "nchw"} : (tensor<1x3x4x4xf32>) -> tensor<1x3x4x4xf32> loc(#loc1)
    %2 = "top.Weight"() : () -> tensor<16x3x3x3xf32> loc(#loc2)
    %5 = "tpu.Conv2D"(%2) : (x) -> tensor<1x16x4x4x!quant.uniform<i8:f32, 0.047>> loc(#loc3)
    %6:2 = "tpu.Split"(%5) : (x) -> (tensor<1x8x!quant.uniform<u8:f32, 5.0e-1:3>>, tensor<1x8xbf16>) loc(#loc4)
#loc1 = loc("image")
#loc2 = loc("w")
#loc3 = loc("r_Relu")
#loc5 = loc("a_Split")
#loc6 = loc("b_Split")
#loc4 = loc(fused[#loc5, #loc6])
"""


@pytest.fixture(scope="module")
def net(tmp_path_factory):
    return models.artifacts(models.conv_net(), tmp_path_factory.mktemp("net"))


@pytest.fixture
def build(net, tmp_path, monkeypatch):
    """Gives a function that compiles the net on a fake with a plan, each time in a folder of its own."""

    def compile(plan=None, chip=CHIP, **options):
        root = write_tool(tmp_path / "tpu-mlir", **(plan or {}))
        monkeypatch.setenv("TPU_MLIR_PATH", str(root))
        folder = tmp_path / f"build{len(list(tmp_path.iterdir()))}"
        return models.compiled(Cvi(), *net, chip, Cvi.Options(**options), folder)

    return compile


def stored_in(made) -> Quantisation:
    return schema.from_dict(Quantisation, schema.read_json(made.path / FILE), FILE)


def rows(made) -> dict[str, list[float]]:
    lines = (made.path / "calibration_table").read_text().splitlines()
    return {line.split()[0]: [*map(float, line.split()[1:])] for line in lines}


def test_the_text_of_the_compiler_is_read():
    assert results(REAL) == (
        Result("Input", "image", "f32"),
        Result("Conv2D", "r_Relu", "i8", 0.047),
        Result("Split", "a_Split", "u8", 0.5, 3),
        Result("Split", "b_Split", "bf16"),
    )


def test_the_table_holds_the_ranges_that_every_chip_has(build, tmp_path):
    made = build()
    assert not (tmp_path / "tpu-mlir" / "seen" / "calibration.txt").exists()
    table, quantisation = rows(made), stored_in(made)
    assert set(table) == {"image", *(f"{name}_{kind}" for name, kind in KINDS.items())}
    assert quantisation.emitter == "cvi" and quantisation.tensors["r1"].dtype == "int8"
    threshold, low, high = table["r1_Relu"]
    assert low == 0 and threshold == pytest.approx(high)
    assert quantisation.tensors["r1"].scale[0] == pytest.approx(threshold / 127)
    assert quantisation.tensors["r1"].range == pytest.approx((low, high))


KINDS = {
    "c1": "Conv", "r1": "Relu", "c2": "Conv", "r2": "Relu", "mean": "GlobalAveragePool", "flat": "Flatten",
    "scores": "Gemm",
}  # fmt: skip


def test_an_edited_quantisation_is_in_the_table(build, tmp_path):
    edited = tmp_path / "edited.json"
    edited.write_text(json.dumps({"tensors": {"r1": {"range": [0, 0.5]}, "r2": {"scale": 0.01, "zero_point": 0}}}))
    made = build(quantisation=edited)
    assert rows(made)["r1_Relu"] == pytest.approx([0.5, 0, 0.5])
    assert rows(made)["r2_Relu"][0] == pytest.approx(1.27)
    assert stored_in(made).tensors["r1"].origin == "stated"
    again = build(quantisation=made.file(FILE))
    assert rows(again) == rows(made)


def test_a_range_that_the_compiler_does_not_keep_ends_the_build(build, tmp_path):
    edited = tmp_path / "edited.json"
    edited.write_text(json.dumps({"tensors": {"r1": {"range": [0, 0.5]}}}))
    with pytest.raises(ConfigError, match=r"tensors\.r1\.range: is int8"):
        build({"deploy": {"wider": "r1_Relu"}}, quantisation=edited)


def test_what_the_compiler_puts_in_has_its_own_range(build, tmp_path):
    made = build({"transform": {"extra": True}, "calibration": {}})
    assert rows(made)["put_in_Permute"] == [2.0, -2.0, 2.0]
    assert rows(made)["r1_Relu"] != [1.0, -1.0, 1.0]
    assert any("put_in_Permute" in note and "run_calibration.py" in note for note in made.manifest.notes)
    assert "--cali_method kl" in seen(tmp_path / "tpu-mlir", "calibration")


@pytest.mark.parametrize(
    "options", [{"calibration_method": "kl"}, {"search": "mixed"}, {"quantize": "bf16"}], ids=["kl", "mixed", "bf16"]
)
def test_a_file_that_nobody_would_read_is_refused(options, tmp_path):
    with pytest.raises(ConfigError, match="this build has others"):
        Cvi.Options(quantisation=tmp_path / "edited.json", **options)


def test_repairs_are_made_for_integers_without_a_zero_point():
    """Biases take back what rounding to the chip's own integers costs the mean of each channel."""
    draw = np.random.default_rng(1)
    model, data = models.conv_net(), Dataset({"image": draw.normal(size=(32, 3, 8, 8)).astype(np.float32)}, None, "x")
    settled = settle(prepare(model), data, TpuPlan(), Dialect("cvi", rounded_everywhere, but_before_rectifiers))
    stored = {t.name: numpy_helper.to_array(t) for t in settled.pairs.graph.initializer}
    rounded = {node.input[0] for node in settled.pairs.graph.node if node.op_type == "QuantizeLinear"}
    assert "r1" in rounded and "c1" not in rounded, "a rectifier is part of the layer before it"
    points = [node.input[2] for node in settled.pairs.graph.node if node.op_type == "QuantizeLinear"]
    assert points and all(not stored[name].any() for name in points)
    assert stored["w2_scale"].size == 16 and stored["w3_scale"].size == 1, "dense layers have one scale on the TPU"
    biases = [
        {t.name: numpy_helper.to_array(t) for t in each.graph.initializer}["b2"] for each in (model, settled.model)
    ]
    assert 0 < np.abs(biases[0] - biases[1]).max() < 0.1
    onnx.checker.check_model(settled.model)
