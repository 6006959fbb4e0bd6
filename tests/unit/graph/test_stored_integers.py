"""Files that onnxruntime quantised to operators on integers, between pairs; the judge is onnxruntime with the file."""

from __future__ import annotations

import json
import subprocess
import sys

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static

from anynpu.errors import IntegrityError, Unsupported
from anynpu.graph import integers
from anynpu.graph.integers import LAYOUTS, compared, in_pairs
from anynpu.graph.quantised import taken_apart
from anynpu.graph.shapes import make_static

SHAPE = (1, 3, 16, 16)
SIZES = {"w1": (8, 3, 3, 3), "b1": (8,), "w2": (8, 8, 3, 3), "b2": (8,), "w3": (16, 10), "b3": (10,), "w4": (10, 6)}
TYPES = {"U8S8": (QuantType.QUInt8, QuantType.QInt8), "S8S8": (QuantType.QInt8, QuantType.QInt8)}
NODES = [
    helper.make_node("Conv", ["x", "w1", "b1"], ["c1"], pads=[1] * 4),
    helper.make_node("Relu", ["c1"], ["r1"]),
    helper.make_node("MaxPool", ["r1"], ["p1"], kernel_shape=[2, 2], strides=[2, 2]),
    helper.make_node("Conv", ["p1", "w2", "b2"], ["c2"], pads=[1] * 4),
    helper.make_node("LeakyRelu", ["c2"], ["l2"], alpha=0.1),
    helper.make_node("Add", ["p1", "l2"], ["a2"]),
    helper.make_node("Sigmoid", ["a2"], ["s2"]),
    helper.make_node("Mul", ["a2", "s2"], ["m2"]),
    helper.make_node("AveragePool", ["m2"], ["v2"], kernel_shape=[2, 2], strides=[2, 2]),
    helper.make_node("MaxPool", ["a2"], ["p2"], kernel_shape=[2, 2], strides=[2, 2]),
    helper.make_node("Concat", ["v2", "p2"], ["j2"], axis=1),
    helper.make_node("GlobalAveragePool", ["j2"], ["g"]),
    helper.make_node("Flatten", ["g"], ["f"]),
    helper.make_node("Gemm", ["f", "w3", "b3"], ["d"]),
    helper.make_node("MatMul", ["d", "w4"], ["e"]),
    helper.make_node("Softmax", ["e"], ["y"], axis=-1),
]

WITHIN = tuple(f"on 8 samples each operator is within {steps} step(s) of the file's" for steps in (0, 1))
"""Where kernels round depends on the CPU."""


class Reader(CalibrationDataReader):
    def __init__(self, samples):
        self.rows = iter(samples)

    def get_next(self):
        row = next(self.rows, None)
        return None if row is None else {"x": row[None]}


def quantised(folder, types="U8S8", per_channel=False, opset=17, nodes=NODES):
    """Writes a float net, its samples and the net on integers; returns the last and the samples."""
    rng = np.random.default_rng(3)
    used = {name for node in nodes for name in node.input}
    stored = [
        numpy_helper.from_array(rng.normal(0, 0.3, size).astype(np.float32), name)
        for name, size in SIZES.items()
        if name in used
    ]
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, SHAPE)]
    outputs = [helper.make_tensor_value_info(nodes[-1].output[0], TensorProto.FLOAT, None)]
    graph = helper.make_graph(nodes, "net", inputs, outputs, stored)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)
    onnx.save(onnx.shape_inference.infer_shapes(model), folder / "float.onnx")
    samples = rng.normal(size=(24, *SHAPE[1:])).astype(np.float32)
    np.savez(folder / "data.npz", x=samples)
    activations, weights = TYPES[types]
    quantize_static(
        str(folder / "float.onnx"),
        str(folder / "net.onnx"),
        Reader(samples),
        quant_format=QuantFormat.QOperator,
        per_channel=per_channel,
        activation_type=activations,
        weight_type=weights,
    )
    return onnx.load(folder / "net.onnx"), samples


def answers(model, samples):
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return np.concatenate([session.run(None, {"x": sample[None]})[0] for sample in samples])


def sqnr_db(wanted, got):
    return 10 * np.log10(np.square(wanted).sum() / max(np.square(wanted - got).sum(), 1e-30))


@pytest.mark.parametrize("opset", [12, 17])
@pytest.mark.parametrize("per_channel", [False, True], ids=["tensor", "channel"])
@pytest.mark.parametrize("types", [*TYPES])
def test_the_pairs_compute_what_the_integers_do(types, per_channel, opset, tmp_path):
    model, samples = quantised(tmp_path, types, per_channel, opset)
    for number, node in enumerate(model.graph.node):
        node.name = f"node {number}"
    kinds = {node.op_type for node in model.graph.node}
    assert len(kinds & {*LAYOUTS}) >= 9, kinds
    pairs, notes = in_pairs(model)
    assert not {node.op_type for node in pairs.graph.node} & {*LAYOUTS} and "QLinearConv" in notes[0]
    static = make_static(pairs)
    onnx.checker.check_model(static)
    assert sqnr_db(answers(model, samples), answers(static, samples)) > 30
    assert compared(model, static, [{"x": sample[None]} for sample in samples])[0].startswith(WITHIN)
    apart, ranges = taken_apart(static)
    assert not {"QuantizeLinear", "DequantizeLinear"} & {node.op_type for node in apart.graph.node} and "x" in ranges
    assert sqnr_db(answers(onnx.load(tmp_path / "float.onnx"), samples), answers(apart, samples)) > 20


def test_a_float_model_stays_as_it_is(tmp_path):
    quantised(tmp_path)
    model = onnx.load(tmp_path / "float.onnx")
    assert in_pairs(model) == (model, ())


@pytest.mark.parametrize("sums", ["native", "exact"])
def test_an_operator_that_is_written_wrongly_is_named(sums, tmp_path, monkeypatch):
    monkeypatch.setenv("ANYNPU_INT8_SUMS", sums)
    model, samples = quantised(tmp_path, "S8S8")
    feeds = [{"x": sample[None]} for sample in samples]
    pairs = make_static(in_pairs(model)[0])
    assert compared(model, pairs, feeds)[0].startswith(WITHIN)
    monkeypatch.setitem(integers.LAYOUTS, "QLinearMul", integers.Layout("Add", (0, 3), 6))
    with pytest.raises(
        IntegrityError, match=r"1 operator\(s\) between pairs differ from the file, first .*QLinearMul is"
    ):
        compared(model, pairs, feeds)


def test_another_model_than_the_file_is_refused_as_a_whole(tmp_path):
    model, samples = quantised(tmp_path)
    pairs = make_static(in_pairs(model)[0])
    scale = next(item for item in pairs.graph.initializer if item.name == "w4_scale")
    scale.CopyFrom(numpy_helper.from_array(-numpy_helper.to_array(scale), scale.name))
    with pytest.raises(IntegrityError, match="dB from the file at output 'y': more than rounding"):
        compared(model, pairs, [{"x": sample[None]} for sample in samples])


def on_integers(kind, inputs, stored, shape, domain="com.microsoft", real=False, **settings):
    """Returns a model of one operator on integers between a pair."""
    scales = {"s": np.float32(0.03), "z": np.uint8(120), "t": np.float32(0.05), "u": np.uint8(110)}
    constants = {name: np.asarray(value) for name, value in {**scales, **stored}.items()}
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "s", "z"], ["q"]),
        helper.make_node(kind, inputs, ["y" if real else "r"], name="it", domain=domain, **settings),
    ]
    nodes += [] if real else [helper.make_node("DequantizeLinear", ["r", "t", "u"], ["y"])]
    graph = helper.make_graph(
        nodes,
        "one",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(value, name) for name, value in constants.items()],
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


RNG = np.random.default_rng(8)
COLUMNS = {
    "b": RNG.integers(-127, 128, (7, 5), np.int8),
    "p": RNG.random(5, np.float32) / 50,
    "o": np.zeros(5, np.int8),
}
BIAS = {"c": RNG.integers(-3000, 3000, 5, np.int32)}
ROWS = {"b": COLUMNS["b"].T.copy(), "p": COLUMNS["p"], "o": COLUMNS["o"]}
ONE = {
    "columns": ("QLinearMatMul", "q s z b p o t u", COLUMNS, {"domain": ""}),
    "gemm": ("QGemm", "q s z b p o c t u", COLUMNS | BIAS, {"alpha": 0.5}),
    "gemm-real": ("QGemm", "q s z b p o c", COLUMNS | BIAS, {"transB": 0, "real": True}),
    "gemm-turned": ("QGemm", "q s z b p o  t u", ROWS, {"transB": 1}),
    "softmax": ("QLinearSoftmax", "q s z t u", {}, {"axis": -1, "opset": 17}),
    "where": ("QLinearWhere", "m q s z q s z t u", {"m": np.asarray([[True], [False], [True]])}, {}),
    "concat": ("QLinearConcat", "t u q s z q s z", {}, {"axis": 1}),
}


@pytest.mark.parametrize("name", [*ONE])
def test_one_operator_at_a_time(name):
    kind, inputs, stored, settings = ONE[name]
    model = on_integers(kind, inputs.split(" "), stored, (3, 7), **settings)
    pairs = make_static(in_pairs(model)[0])
    feeds = [{"x": RNG.normal(0, 2, (3, 7)).astype(np.float32)} for _ in range(8)]
    assert kind not in {node.op_type for node in pairs.graph.node}
    assert compared(model, pairs, feeds)[0].startswith(WITHIN)


REFUSED = {
    "channels last": ("QLinearGlobalAveragePool", "q s z t u", {}, (1, 4, 4, 3), {"channels_last": 1}),
    "an old softmax": ("QLinearSoftmax", "q s z t u", {}, (1, 3, 7), {"axis": 1, "opset": 12}),
}


@pytest.mark.parametrize("name", [*REFUSED])
def test_what_has_no_operator_on_real_numbers_is_refused_by_name(name):
    kind, inputs, stored, shape, settings = REFUSED[name]
    model = on_integers(kind, inputs.split(" "), stored, shape, **settings)
    assert in_pairs(model) == (model, ())
    with pytest.raises(Unsupported, match=rf"operators on integers: {kind} \(it\)"):
        make_static(model)


def test_paddings_rows_and_choices_on_integers():
    stored = {"at": np.asarray([0, 2, 4]), "n": np.asarray([0, 1, 0, 2])}
    model = on_integers("QLinearAdd", ["g", "s", "z", "g", "s", "z", "t", "u"], stored, (3, 7))
    model.graph.node.insert(1, helper.make_node("Gather", ["q", "at"], ["g"], axis=1))
    model.graph.node.insert(3, helper.make_node("Pad", ["r", "n"], ["k"]))
    model.graph.node.append(helper.make_node("ArgMax", ["k"], ["i"], axis=1))
    model.graph.node[4].input[0] = "k"
    model.graph.output.append(helper.make_tensor_value_info("i", TensorProto.INT64, None))
    pairs = make_static(in_pairs(model)[0])
    feeds = [{"x": RNG.normal(0, 2, (3, 7)).astype(np.float32)} for _ in range(8)]
    assert compared(model, pairs, feeds)[0].startswith(WITHIN)
    assert [node.op_type for node in pairs.graph.node].count("DequantizeLinear") >= 6


def test_a_kernel_that_rounds_in_another_place_is_a_step_apart():
    stored = {"n": np.asarray([1, 1, 2, 2], np.float32)}
    model = on_integers("QLinearAdd", ["v", "s", "z", "v", "s", "z", "t", "u"], stored, (1, 2, 6, 6))
    model.graph.node.insert(1, helper.make_node("Resize", ["q", "", "n"], ["v"], mode="linear"))
    feeds = [{"x": RNG.normal(0, 2, (1, 2, 6, 6)).astype(np.float32)} for _ in range(8)]
    assert "within 1 step(s)" in compared(model, make_static(in_pairs(model)[0]), feeds)[0]


def test_a_whole_build_takes_the_scales_of_the_file(tmp_path):
    model, _ = quantised(tmp_path, per_channel=True)
    flags = ["-t", "cpu,tflite", "--data", str(tmp_path / "data.npz"), "-o", str(tmp_path / "out"), "-f", "json", "-q"]
    command = [sys.executable, "-m", "anynpu", "build", "-m", str(tmp_path / "net.onnx"), *flags]
    done = subprocess.run(command, capture_output=True, text=True)
    report = json.loads(done.stdout)
    assert [chip["status"] for chip in report["chips"]] == ["ok", "ok"], done.stderr
    assert "on stored integers are written between pairs" in done.stdout and "each operator is within" in done.stdout
    forms = json.loads((tmp_path / "out" / "tflite" / "quantisation.json").read_text())["tensors"]
    stored = {item.name: numpy_helper.to_array(item) for item in model.graph.initializer}
    np.testing.assert_allclose(forms["x"]["scale"], stored["x_scale"].reshape(-1), rtol=1e-6)
