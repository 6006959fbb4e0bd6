"""The one quantisation as the Hexagon NPU gets it: written next to the context, edited, repaired, compared."""

from __future__ import annotations

import json

import numpy as np
import onnx
import pytest
from fake_qnn import write_tool
from onnx import numpy_helper

from anynpu import plugins, schema
from anynpu.errors import ConfigError
from anynpu.pipeline.ladder import LADDER, Rung
from anynpu.pipeline.layers import inspect
from anynpu.quantize.calibration import Dataset
from anynpu.quantize.plan import QuantPlan
from anynpu.quantize.qdq import prepare, with_pairs, write_qdq
from anynpu.records.build import GraphForm
from anynpu.records.quantisation import FILE, Quantisation
from anynpu.targets.qnn import Qnn
from anynpu.targets.qnn.quantise import dialect
from anynpu.testing import models

CHIP = plugins.platform("snapdragon-x-elite")
FLOATING = ("QuantizeLinear", "DequantizeLinear")


@pytest.fixture(scope="module")
def net(tmp_path_factory):
    return models.artifacts(models.conv_net(), tmp_path_factory.mktemp("net"))


@pytest.fixture
def build(net, tmp_path, monkeypatch):
    """Gives a function that compiles the net with options, each time in a folder of its own."""
    monkeypatch.setenv("ONNXRUNTIME_QNN_PATH", str(write_tool(tmp_path / "qnn")))

    def compile(**options):
        folder = tmp_path / f"build{len(list(tmp_path.iterdir()))}"
        return models.compiled(Qnn(), *net, CHIP, Qnn.Options(**options), folder)

    return compile


def stored_in(made) -> Quantisation:
    return schema.from_dict(Quantisation, schema.read_json(made.path / FILE), FILE)


def types(model: onnx.ModelProto) -> dict[str, tuple[set[str], set[str]]]:
    """Returns the types of the integers that each operator reads and gives, read from the pairs around it."""
    stored = {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
    makers = {name: node for node in model.graph.node for name in node.output}
    readers: dict[str, list[onnx.NodeProto]] = {}
    for node in model.graph.node:
        for name in node.input:
            readers.setdefault(name, []).append(node)
    around = {}
    for node in (node for node in model.graph.node if node.op_type not in FLOATING):
        pairs = [makers[name] for name in node.input if name in makers and makers[name].op_type == FLOATING[1]]
        read = {str(stored[pair.input[2]].dtype) for pair in pairs if pair.input[0] not in stored}
        behind = [each for each in readers.get(node.output[0], ()) if each.op_type == FLOATING[0]]
        around[node.name] = read, {str(stored[each.input[2]].dtype) for each in behind}
    return around


def test_the_quantisation_lies_next_to_the_context(build):
    made = build()
    quantisation = stored_in(made)
    assert quantisation.emitter == "qnn"
    assert quantisation.tensors["r1"].dtype == "uint8" and quantisation.tensors["w1"].dtype == "int8"
    assert len(quantisation.tensors["w1"].scale) == 8 and quantisation.tensors["b1"].dtype == "int32"
    scales = {t.name: numpy_helper.to_array(t) for t in onnx.load(made.file("model.onnx")).graph.initializer}
    assert quantisation.tensors["r1"].scale[0] == pytest.approx(float(scales["r1_scale"]))


def test_an_edited_quantisation_reaches_the_npu(build, tmp_path):
    edited = tmp_path / "edited.json"
    edited.write_text(json.dumps({"tensors": {"r1": {"range": [0, 0.5]}, "mean": {"dtype": "uint16"}}}))
    plain, made = stored_in(build()), stored_in(build(quantisation=edited))
    assert made.tensors["r1"].scale[0] == pytest.approx(0.5 / 255)
    assert made.tensors["r1"].origin == "stated" and plain.tensors["r1"].origin != "stated"
    assert made.tensors["mean"].dtype == "uint16" and plain.tensors["mean"].dtype == "uint8"


def test_a_whole_file_builds_the_same_model_again(build):
    first = build(wide_tensors=("r1",))
    again = build(quantisation=first.file(FILE))
    assert again.file("model.onnx").read_bytes() == first.file("model.onnx").read_bytes()


def test_an_operator_next_to_a_wide_tensor_computes_in_one_width(build):
    made = build(wide_tensors=("r1",))
    quantisation, model = stored_in(made), onnx.load(made.file("model.onnx"))
    assert {name for name, form in quantisation.tensors.items() if form.dtype == "uint16"} == {"r1"}
    widths = types(model)
    assert widths["conv1"] == ({"uint16"}, {"uint16"}) and widths["conv2"] == ({"uint16"}, {"uint16"})
    assert widths["dense"] == ({"uint8"}, {"uint8"})
    read_wide = {each.operator: each.tensor for each in quantisation.converted if each.form.dtype == "uint16"}
    assert "image" in read_wide.values() and quantisation.tensors["image"].dtype == "uint8"


def test_wide_tensors_bring_the_model_nearer(build):
    narrow, wide = (build(wide_tensors=names) for names in ((), ("image", "r1", "r2", "mean", "scores")))
    near = [made.manifest.details["agreement"]["cpu_float_db"] for made in (narrow, wide)]
    assert near[1] > near[0] + 3


def test_four_bit_weights_are_stored_in_four_bits(build):
    made = build(weight_bits=4)
    assert stored_in(made).tensors["w1"].dtype == "int4"
    kinds = {tensor.name: tensor.data_type for tensor in onnx.load(made.file("model.onnx")).graph.initializer}
    assert kinds["w1_quantized"] == onnx.TensorProto.INT4


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"float_tensors": ("r1",)}, "computes in integers"),
        ({"activations": "int16"}, "uint8 or uint16"),
        ({"wide_tensors": ("r9",)}, "no such tensor"),
    ],
)
def test_what_the_npu_cannot_have_is_refused(build, options, words):
    with pytest.raises(ConfigError, match=words):
        build(**options)


def test_a_file_with_the_names_of_another_graph_is_refused(build, tmp_path):
    file = tmp_path / "cpu.json"
    file.write_text(json.dumps({"emitter": "qdq", "tensors": {"r1": {"range": [0, 1]}}}))
    with pytest.raises(ConfigError, match="quantisation of a qdq file") as refused:
        build(quantisation=file)
    assert refused.value.hint.startswith("-O cpu.quantisation=")


def test_repairs_in_sixteen_bits_are_those_of_the_npu():
    options = Qnn.Options()
    wide = options.changed({"activations": "int16", "wide_tensors": ()})
    assert wide is not None and wide.activations == "uint16"
    assert options.changed({"float_tensors": ("r1",)}) is None
    tried = [options.changed(rung.settings) for rung in LADDER if isinstance(rung, Rung)]
    assert any(plan is not None and plan.rounding == "fitted" for plan in tried)


def test_layers_are_those_of_the_quantised_model(build, net, tmp_path):
    made = build()
    drawn = inspect(str(made.path), str(net[0].path), "", str(net[1].path), str(tmp_path / "inner"))
    graph = schema.from_dict(GraphForm, drawn, "graph")
    assert graph.of == "onnx-qnn" and any("was compiled from" in note for note in graph.notes)
    assert graph.tensors["r1"].sqnr_db is not None and 20 < graph.tensors["r1"].sqnr_db < 80


def test_weights_and_biases_are_the_integers_of_the_cpu(tmp_path):
    model, samples = models.conv_net(), np.random.default_rng(0).normal(size=(16, 3, 8, 8)).astype(np.float32)
    data, same = Dataset({"image": samples}, None, "test"), {"equalize": False, "bias_correction": False}
    theirs = write_qdq(model, data, QuantPlan(activations="uint8", **same))
    options = Qnn.Options(method="auto", **same)
    ours = with_pairs(prepare(model), data, options, dialect(options))
    stored = [{t.name: numpy_helper.to_array(t) for t in each.graph.initializer} for each in (ours, theirs)]
    for name in ("w1", "w2", "w3", "b1", "b2", "b3"):
        np.testing.assert_array_equal(stored[0][f"{name}_quantized"], stored[1][f"{name}_quantized"])
