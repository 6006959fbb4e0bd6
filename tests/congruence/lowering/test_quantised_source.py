"""ONNX files that ONNX Runtime's quantiser wrote: pairs keep their scales, dynamic and integer operators are named."""

from __future__ import annotations

import json
import subprocess
import sys

import numpy as np
import onnx
import onnxruntime
import pytest
from lowered_nets import net
from onnx import helper, numpy_helper
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_dynamic, quantize_static

from anynpu.errors import Unsupported
from anynpu.graph.quantised import refuse_integers, taken_apart
from anynpu.graph.shapes import make_static


class Reader(CalibrationDataReader):
    def __init__(self, samples):
        self.rows = iter(samples)

    def get_next(self):
        row = next(self.rows, None)
        return None if row is None else {"x": row[None]}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A float net, its samples, and what ONNX Runtime's quantiser makes of it in three ways."""
    path, rng = tmp_path_factory.mktemp("quantised"), np.random.default_rng(5)
    shapes = {"w1": (8, 3, 3, 3), "b1": (8,), "w2": (10, 8), "b2": (10,)}
    constants = {name: rng.normal(0, 0.3, shape).astype(np.float32) for name, shape in shapes.items()}
    nodes = [
        helper.make_node("Conv", ["x", "w1", "b1"], ["a"], pads=[1] * 4),
        helper.make_node("Relu", ["a"], ["b"]),
        helper.make_node("GlobalAveragePool", ["b"], ["c"]),
        helper.make_node("Flatten", ["c"], ["d"]),
        helper.make_node("Gemm", ["d", "w2", "b2"], ["y"], transB=1),
    ]
    samples = rng.normal(size=(20, 3, 16, 16)).astype(np.float32)
    np.savez(path / "data.npz", x=samples)
    onnx.save(net(nodes, {"x": (1, 3, 16, 16)}, constants, opset=17), path / "float.onnx")
    source, bits = str(path / "float.onnx"), {"activation_type": QuantType.QInt8, "weight_type": QuantType.QInt8}
    quantize_static(source, str(path / "pairs.onnx"), Reader(samples), per_channel=True, **bits)
    quantize_static(source, str(path / "integers.onnx"), Reader(samples), quant_format=QuantFormat.QOperator)
    quantize_dynamic(source, str(path / "dynamic.onnx"))
    return path


def outputs(model, samples):
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return np.concatenate([session.run(None, {"x": sample[None]})[0] for sample in samples])


def test_the_model_between_the_pairs_keeps_the_relu_that_the_quantiser_dropped(folder):
    model = onnx.load(folder / "pairs.onnx")
    assert "Relu" not in {node.op_type for node in model.graph.node}
    apart, ranges = taken_apart(model)
    assert [node.op_type for node in apart.graph.node].count("Relu") == 1
    assert not {"QuantizeLinear", "DequantizeLinear"} & {node.op_type for node in apart.graph.node}
    samples = np.load(folder / "data.npz")["x"][:4]
    wanted, found = outputs(onnx.load(folder / "float.onnx"), samples), outputs(apart, samples)
    assert np.abs(wanted - found).max() < 0.02 * np.abs(wanted).max()
    assert ranges["x"][0] < samples.min() and ranges["x"][1] > 0


def test_a_build_keeps_the_scales_of_the_file(folder, monkeypatch):
    monkeypatch.setenv("ANYNPU_CACHE_DIR", str(folder / "cache"))
    command = [sys.executable, "-m", "anynpu", "build", "-m", str(folder / "pairs.onnx"), "-t", "cpu,tflite"]
    command += ["--data", str(folder / "data.npz"), "-o", str(folder / "out"), "-f", "json", "-q"]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    forms = json.loads((folder / "out" / "tflite" / "quantisation.json").read_text())["tensors"]
    model = onnx.load(folder / "pairs.onnx")
    stored = {item.name: numpy_helper.to_array(item) for item in model.graph.initializer}
    for name in ("x", "y"):
        np.testing.assert_allclose(forms[name]["scale"], stored[f"{name}_scale"].reshape(-1), rtol=1e-6)
        assert forms[name]["zero_point"] == stored[f"{name}_zero_point"].reshape(-1).tolist()
    weights = next(form for name, form in forms.items() if name.startswith("w1"))
    np.testing.assert_allclose(weights["scale"], stored["w1_scale"], rtol=1e-5)
    chips = {chip["chip"]: chip["verification"]["sqnr_db"] for chip in json.loads(result.stdout)["chips"]}
    assert chips["tflite"] > 35
    copied = onnx.load(folder / "out" / "cpu" / "model.onnx")
    assert [node.op_type for node in copied.graph.node].count("QuantizeLinear") == sum(
        node.op_type == "QuantizeLinear" for node in model.graph.node
    )


def test_dynamic_and_integer_operators_are_named(folder):
    with pytest.raises(Unsupported, match="quantised dynamically: DynamicQuantizeLinear"):
        refuse_integers(onnx.load(folder / "dynamic.onnx"))
    with pytest.raises(Unsupported, match="operators on integers: QLinearConv") as error:
        make_static(onnx.load(folder / "integers.onnx"))
    assert "QuantFormat.QDQ" in error.value.hint


def test_a_node_that_reads_the_integers_is_named(folder):
    model = onnx.load(folder / "pairs.onnx")
    pair = next(node for node in model.graph.node if node.op_type == "DequantizeLinear" and "x_Q" in node.input[0])
    model.graph.node.append(helper.make_node("Cast", [pair.input[0]], ["number"], to=onnx.TensorProto.FLOAT, name="n"))
    with pytest.raises(Unsupported, match=r"Cast \(n\) computes on the stored integers"):
        taken_apart(model)
