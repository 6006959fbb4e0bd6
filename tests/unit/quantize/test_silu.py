"""SiLU is rounded once in a QDQ model, and outputs are never clipped."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper, shape_inference

from anynpu.graph.run import Session
from anynpu.quantize.calibration import Dataset
from anynpu.quantize.onnx_net import OnnxForm
from anynpu.quantize.plan import QuantPlan
from anynpu.quantize.qdq import model_ranges, write_qdq
from anynpu.quantize.qdq_record import float_operators

RNG = np.random.default_rng(0)


def silu_net(gate_read_twice=False, other=False):
    """A convolution and SiLU; `other` multiplies by the sigmoid of another tensor, which is no SiLU."""
    weight = numpy_helper.from_array(RNG.normal(0, 2, (4, 3, 1, 1)).astype(np.float32), "w")
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], name="conv"),
        helper.make_node("Sigmoid", ["x2" if other else "c"], ["s"], name="gate"),
        helper.make_node("Mul", ["c", "s"], ["y"], name="product"),
    ]
    names = ["y"]
    if other:
        nodes.insert(1, helper.make_node("Conv", ["x", "w"], ["x2"], name="other"))
    if gate_read_twice:
        nodes.append(helper.make_node("MaxPool", ["s"], ["z"], name="again", kernel_shape=[1, 1]))
        names = ["y", "z"]
    outputs = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [1, 4, 8, 8]) for n in names]
    image = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 3, 8, 8])
    graph = helper.make_graph(nodes, "net", [image], outputs, [weight])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def data():
    return Dataset({"x": RNG.normal(0, 2, (6, 3, 8, 8)).astype(np.float32)}, None, "drawn", False)


def fed_by(model, name):
    return next(node for node in model.graph.node if node.name == name).input


def test_nothing_is_rounded_between_sigmoid_and_product():
    quantised = write_qdq(silu_net(), data(), QuantPlan())
    made_by = {name: node.op_type for node in quantised.graph.node for name in node.output}
    assert sorted(made_by[name] for name in fed_by(quantised, "product")) == ["DequantizeLinear", "Sigmoid"]
    assert made_by[fed_by(quantised, "gate")[0]] == "DequantizeLinear"
    assert float_operators(quantised) == []


def test_the_output_is_what_a_table_of_integers_gives():
    """Each stored input stands for one stored output: within a step, the output is a function of the input alone."""
    quantised = write_qdq(silu_net(), data(), QuantPlan(bias_correction=False))
    pairs = [n for n in quantised.graph.node if n.op_type == "QuantizeLinear"]
    stored = {t.name: numpy_helper.to_array(t) for t in quantised.graph.initializer}
    inner = next(n for n in pairs if n.input[0] == "c")
    step, zero = (float(stored[name]) for name in inner.input[1:3])
    quantised.graph.output.append(helper.make_tensor_value_info(inner.output[0], TensorProto.INT8, [1, 4, 8, 8]))
    y, c = Session(quantised).run({"x": data().inputs["x"][:1]})
    real = (c.astype(np.float64) - zero) * step
    last = next(n for n in pairs if n.input[0].startswith("y"))
    assert np.abs(y - real / (1 + np.exp(-real))).max() <= float(stored[last.input[1]]) * 0.51


@pytest.mark.parametrize("form", [{"gate_read_twice": True}, {"other": True}])
def test_a_gate_with_another_use_keeps_its_rounding(form):
    quantised = write_qdq(silu_net(**form), data(), QuantPlan())
    made_by = {name: node.op_type for node in quantised.graph.node for name in node.output}
    assert {made_by[name] for name in fed_by(quantised, "product")} == {"DequantizeLinear"}


def test_a_function_of_one_tensor_is_rounded_once_however_it_is_written():
    net = silu_net()
    net.graph.node.append(helper.make_node("Add", ["s", "y"], ["z"], name="again"))
    net.graph.node.append(helper.make_node("Conv", ["z", "v"], ["end"], name="behind"))
    net.graph.initializer.append(numpy_helper.from_array(np.ones((4, 4, 1, 1), np.float32), "v"))
    net.graph.output[0].name = "end"
    quantised = write_qdq(net, data(), QuantPlan())
    made_by = {name: node.op_type for node in quantised.graph.node for name in node.output}
    assert sorted(made_by[name] for name in fed_by(quantised, "product")) == ["DequantizeLinear", "Sigmoid"]
    assert sorted(made_by[name] for name in fed_by(quantised, "again")) == ["Mul", "Sigmoid"]
    assert made_by[fed_by(quantised, "behind")[0]] == "DequantizeLinear"


def test_the_rare_high_values_of_an_output_are_kept():
    samples, net = data(), shape_inference.infer_shapes(silu_net())
    samples.inputs["x"][0, :, 0, 0] *= 12.0
    highest = max(float(Session(net).run({"x": x[None]})[0].max()) for x in samples.inputs["x"])
    ranges = model_ranges(OnnxForm(net), samples, QuantPlan(method="percentile", percentile=99.0)).ranges
    assert ranges["y"].max == pytest.approx(highest)
    assert ranges["c"].max < 0.9 * highest  # inside, the method clips
