"""onnxruntime-qnn itself: every zoo model on Qualcomm's simulator, and the model that it computes wrongly.

`make test-qnn` installs it. The XINT8 model is made by Quark where that is installed too.
"""

from __future__ import annotations

import json

import numpy as np
import onnx
import pytest
from fake_qnn import xint8_net  # the model, not the fake

from anynpu.capsules import capsule
from anynpu.errors import ToolMissing
from anynpu.testing import models

CHIP = ("-t", "hexagon-v73")
FLOORS = {"uint8": 32.0, "uint16": 35.1}
LIMITS = {"hello": 24, "detector": 100}
"""Samples for the two nets that the simulator takes seconds for."""
QUARK = """
import sys
import numpy as np
from onnxruntime.quantization import CalibrationDataReader
from quark.onnx import ModelQuantizer
from quark.onnx.quantization.config import Config, get_default_config

class Reader(CalibrationDataReader):
    def __init__(self):
        self.rows = iter(np.load("samples.npy"))
    def get_next(self):
        row = next(self.rows, None)
        return None if row is None else {"x": row[None]}

config = Config(global_quant_config=get_default_config("XINT8"))
ModelQuantizer(config).quantize_model("net.onnx", "xint8.onnx", Reader())
"""


@pytest.fixture(scope="session", autouse=True)
def qnn():
    capsule.find("qnn")


@pytest.mark.parametrize("activations", FLOORS)
@pytest.mark.parametrize("name", ["hello", "resnet8", "kws", "vww", "autoencoder", "detector"])
def test_zoo(built, name, activations):
    limit = LIMITS.get(name, 500)
    record = built("-m", f"zoo:{name}", *CHIP, "-O", f"activations={activations}", "--limit", limit)
    proof = record["verification"]
    assert proof["sqnr_db"] >= FLOORS[activations]
    assert record["receipt"]["share"] == 1.0
    # One sample more or less is all that a small set can tell apart.
    assert proof["score"] >= proof["score_float"] - max(0.01, 1.5 / proof["samples"])


def test_minilm_in_sixteen_bits(built, minilm):
    """The simulator takes seconds for a sentence."""
    record = built(*minilm, *CHIP, "-O", "activations=uint16", "--limit", 20)
    assert record["verification"]["sqnr_db"] >= 28 and record["receipt"]["share"] == 1.0


def test_minilm_in_eight_bits_is_refused(built, minilm):
    record = built(*minilm, *CHIP, "-O", "activations=uint8", "--limit", 20, "--no-repair", status=7)
    assert record["status"] == "AccuracyError" and record["verification"]["sqnr_db"] < 8
    assert record["diagnosis"]["tensors"], "the quantised model next to the context is what is looked into"


def test_an_edited_quantisation_reaches_the_npu(built, tmp_path):
    """One tensor clipped costs what it must, one wide tensor gains, and a whole file builds the same model again."""
    words = ("-m", "zoo:resnet8", *CHIP, "--limit", 40, "--no-repair")
    plain = built(*words)["verification"]["sqnr_db"]
    file = tmp_path / "out" / "hexagon-v73" / "quantisation.json"
    tensors = json.loads(file.read_text())["tensors"]
    wide = [n for n, t in tensors.items() if t["dtype"] == "uint8" and t["origin"] in ("measured", "function")]
    (tmp_path / "edited.json").write_text(json.dumps({"tensors": {n: {"dtype": "uint16"} for n in wide}}))
    edited = built(*words, "-O", "quantisation=edited.json", out="wide")
    assert edited["receipt"]["share"] == 1.0 and edited["verification"]["sqnr_db"] > plain + 2
    cut = next(name for name in wide if name.endswith("body.1/relu/Clip_output_0"))
    (tmp_path / "cut.json").write_text(json.dumps({"tensors": {cut: {"range": [0, 3]}}}))
    assert built(*words, "-O", "quantisation=cut.json", out="cut")["verification"]["sqnr_db"] < plain - 5
    again = tmp_path / "wide" / "hexagon-v73"
    built(*words, "-O", f"quantisation={again / 'quantisation.json'}", out="again")
    same = tmp_path / "again" / "hexagon-v73"
    assert (same / "model.onnx").read_bytes() == (again / "model.onnx").read_bytes()


def test_four_bit_weights_run(built):
    record = built("-m", "zoo:resnet8", *CHIP, "--limit", 40, "-O", "weight_bits=4", "--no-repair")
    assert record["verification"]["sqnr_db"] > 12 and record["receipt"]["share"] == 1.0


def float_net() -> onnx.ModelProto:
    """Returns the float model behind `xint8_net`: Conv, Relu, MaxPool, Conv."""
    graph = xint8_net().graph
    stored = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in graph.initializer}
    layers = {node.name: node for node in graph.node if node.name}
    weights = {
        name: stored[name].astype(np.float32) * stored[f"{name}_s"]
        for name in ("first_w", "first_b", "second_w", "second_b")
    }
    wires = {"first": ["x", "first_w", "first_b"], "rectify": ["first"], "pool": ["relu"]}
    wires["second"] = ["pool", "second_w", "second_b"]
    for name, inputs in wires.items():
        del layers[name].input[:]
        layers[name].input.extend(inputs)
    layers["second"].output[0] = "y"
    constants = [onnx.numpy_helper.from_array(value, name) for name, value in weights.items()]
    whole = onnx.helper.make_graph([layers[n] for n in wires], "net", graph.input, graph.output, constants)
    return onnx.helper.make_model(whole, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8)


@pytest.fixture
def samples(tmp_path):
    """Writes samples.npy, for the nets above."""
    np.save(tmp_path / "samples.npy", np.random.default_rng(0).normal(size=(40, 3, 16, 16)).astype(np.float32))


def refused(built) -> None:
    record = built("-m", "xint8.onnx", *CHIP, "--data", "samples.npy", status=7)
    assert record["status"] == "AccuracyError"
    assert "the HTP computes something else" in record["error"]["message"]


def test_the_form_of_xint8_is_caught(built, samples, tmp_path):
    onnx.save(xint8_net(), tmp_path / "xint8.onnx")
    refused(built)


def test_quarks_own_xint8_is_caught(built, samples, tmp_path):
    try:
        quark = capsule.find("quark")
    except ToolMissing as missing:
        pytest.skip(f"{missing.message}: {missing.hint}")
    onnx.save(float_net(), tmp_path / "net.onnx")
    (tmp_path / "quantise.py").write_text(QUARK)
    quark.run(["python", "quantise.py"], cwd=tmp_path, log=tmp_path / "quark.log", timeout_s=900)
    refused(built)


def test_the_operator_that_the_htp_computes_wrongly_is_found(built, samples, tmp_path, cli):
    onnx.save(xint8_net(), tmp_path / "xint8.onnx")
    kept = ("-O", "agreement_db=-300", "--min-sqnr", "-300")
    built("-m", "xint8.onnx", *CHIP, "--data", "samples.npy", *kept)
    words = ("bisect", "xint8.onnx", "out/hexagon-v73", "--data", "samples.npy", "-o", "bundle", "-f", "json")
    done = cli(*words, timeout=1700)
    assert done.returncode == 1, done.stderr[-2000:]
    record = json.loads(done.stdout)
    assert record["guilty"]["name"] == "second" and record["alone"]
    assert record["difference"]["sqnr_db"] < 5
    assert (tmp_path / "bundle" / "compiled-b" / "hexagon-v73" / "manifest.json").is_file()


def test_the_float_model_behind_it_is_built(built, samples, tmp_path):
    onnx.save(float_net(), tmp_path / "net.onnx")
    record = built("-m", "net.onnx", *CHIP, "--data", "samples.npy")
    assert record["verification"]["sqnr_db"] > 30


def test_an_operator_that_the_htp_lacks_is_named(built, tmp_path):
    nodes = [onnx.helper.make_node("Sinh", ["x"], ["a"], name="odd"), onnx.helper.make_node("Relu", ["a"], ["y"])]
    sides = [[onnx.helper.make_tensor_value_info(n, 1, [1, 3, 8, 8])] for n in "xy"]
    graph = onnx.helper.make_graph(nodes, "odd", *sides)
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8)
    models.save(model, tmp_path / "odd.onnx")
    words = ("-m", "odd.onnx", *CHIP, "--data", "random:40")
    record = built(*words, status=3)
    assert record["error"]["findings"][0]["where"] == "odd"
    record = built(*words, "-O", "allow_cpu=true", "--overwrite", status=1)
    assert record["status"] == "fallback", record
