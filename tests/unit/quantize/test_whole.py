"""Normalised nets in QDQ form: whole operators are not rounded inside, and loud channels are smoothed."""

from __future__ import annotations

import numpy as np
import pytest
from attention_block import NODE, SAMPLES, block, run
from onnx import TensorProto, helper, numpy_helper

from anynpu.quantize.calibration import Dataset
from anynpu.quantize.onnx_net import OnnxForm
from anynpu.quantize.plan import QuantPlan
from anynpu.quantize.qdq import prepare, write_qdq
from anynpu.quantize.repairs import smoothed
from anynpu.runtime.ort import inference_session


def sqnr(model, plan=None):
    wanted = run(model)
    found = run(write_qdq(model, Dataset({"x": SAMPLES}, None, "drawn"), plan or QuantPlan()))
    return 10 * np.log10(np.sum(wanted**2) / np.sum((found - wanted) ** 2))


@pytest.mark.parametrize("written", [False, True], ids=["operator", "written out"])
@pytest.mark.parametrize("mask", [-30.0, -1e4, -1e9])
def test_a_normalised_net_with_a_loud_channel_and_a_mask_keeps_its_accuracy(mask, written):
    assert sqnr(block(mask, written)) > 24


def test_nothing_is_rounded_between_a_product_and_the_normalisation_behind_it():
    quantised = write_qdq(block(), Dataset({"x": SAMPLES}, None, "drawn"), QuantPlan())
    made_by = {name: node.op_type for node in quantised.graph.node for name in node.output}
    readers = {node.output[0]: node for node in quantised.graph.node}
    assert {made_by[name] for name in readers["s2"].input} == {"Mul", "MatMul"}
    assert all(made_by[name] == "DequantizeLinear" for node in quantised.graph.node if node.op_type == "MatMul"
               for name in node.input)  # fmt: skip


def test_smoothing_changes_nothing_but_the_loudness_of_channels():
    model = prepare(block())
    wanted = run(model)
    form, count = smoothed(OnnxForm(model), Dataset({"x": SAMPLES}, None, "drawn"))
    assert count == 3 and any(node.name.endswith("/restored") for node in form.model.graph.node)
    assert np.allclose(run(form.model), wanted, atol=1e-4)


def test_smoothing_pays():
    gains = [sqnr(block(seed=seed)) - sqnr(block(seed=seed), QuantPlan(equalize=False)) for seed in range(4)]
    assert np.mean(gains) > 2


def float_and_rounded(nodes, stored, taken, given, draw):
    """Returns what a net of x and y gives for 16 drawn samples, and what its QDQ form does."""
    graph = helper.make_graph(
        nodes,
        "net",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, *taken])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, *given])],
        [numpy_helper.from_array(value.astype(np.float32), name) for name, value in stored.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    samples = Dataset({"x": draw.normal(0, 1, (16, *taken)).astype(np.float32)}, None, "test")
    sessions = [inference_session(each.SerializeToString()) for each in (model, write_qdq(model, samples, QuantPlan()))]
    return [np.stack([s.run(["y"], samples.sample(i))[0] for i in range(16)]) for s in sessions]


def test_a_softmax_over_many_places_right_behind_a_product():
    """Rounded on both sides it becomes onnxruntime's QLinearSoftmax, which gives 1 dB here."""
    draw = np.random.default_rng(0)
    stored = {"keys": draw.normal(0, 0.02, (8, 1024)), "values": draw.normal(0, 30, (1024, 16))}
    nodes = [
        NODE("MatMul", ["x", "keys"], ["scores"]),
        NODE("Softmax", ["scores"], ["shares"], axis=-1),
        NODE("MatMul", ["shares", "values"], ["y"]),
    ]
    wanted, got = float_and_rounded(nodes, stored, [4, 8], [4, 16], draw)
    assert 10 * np.log10(np.square(wanted).sum() / np.square(wanted - got).sum()) > 25


def test_a_class_token_far_below_the_words_that_it_is_joined_with_is_kept():
    """As in a vision transformer that was not trained yet: under one scale with the words it would be zero."""
    draw = np.random.default_rng(0)
    stored = {
        "token": draw.normal(0, 1e-6, (1, 1, 8)),
        "w": draw.normal(0, 1, (6, 8)),
        "head": draw.normal(0, 1, (8, 5)),
    }
    stored |= {"gamma": np.ones(8), "beta": np.zeros(8)}
    nodes = [
        NODE("MatMul", ["x", "w"], ["words"]),
        NODE("Concat", ["token", "words"], ["all"], axis=1),
        NODE("LayerNormalization", ["all", "gamma", "beta"], ["normal"], axis=-1, epsilon=1e-16),
        NODE("MatMul", ["normal", "head"], ["y"]),
    ]
    wanted, got = float_and_rounded(nodes, stored, [4, 6], [5, 5], draw)
    wanted, got = wanted[:, :, 0], got[:, :, 0]
    assert 10 * np.log10(np.square(wanted).sum() / np.square(wanted - got).sum()) > 25


def rectified():
    """A convolution, a rectifier, a pool and another convolution, and samples with a loud channel."""
    draw = np.random.default_rng(3)
    stored = {"w": draw.normal(size=(4, 2, 3, 3)), "b": draw.normal(size=4), "v": draw.normal(size=(3, 4, 3, 3))}
    stored["c"] = draw.normal(size=3)
    nodes = [
        NODE("Conv", ["x", "w", "b"], ["h"], name="h", pads=[1, 1, 1, 1]),
        NODE("Relu", ["h"], ["r"], name="r"),
        NODE("MaxPool", ["r"], ["p"], name="p", kernel_shape=[2, 2], strides=[2, 2]),
        NODE("Conv", ["p", "v", "c"], ["y"], name="y", pads=[1, 1, 1, 1]),
    ]
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes,
        "g",
        [value("x", TensorProto.FLOAT, [1, 2, 8, 8])],
        [value("y", TensorProto.FLOAT, [1, 3, 4, 4])],
        [numpy_helper.from_array(array.astype(np.float32), name) for name, array in stored.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    return model, Dataset({"x": draw.normal(size=(16, 2, 8, 8)).astype(np.float32)}, None, "test")


@pytest.mark.parametrize("field", ["wide_tensors", "float_tensors"])
def test_named_tensors_have_16_bits_or_none(field):
    model, data = rectified()
    names = ("x", "r", "y")
    written = write_qdq(model, data, QuantPlan(**{field: names}))
    stored = {tensor.name: tensor for tensor in written.graph.initializer}
    types = {
        node.input[0].removesuffix("_QuantizeLinear_Input"): stored[node.input[2]].data_type
        for node in written.graph.node
        if node.op_type == "QuantizeLinear"
    }
    if field == "wide_tensors":
        assert {types[name] for name in names} == {TensorProto.INT16}
    else:
        assert types == {}
        assert "Relu" in [node.op_type for node in written.graph.node]
    plain = write_qdq(model, data, QuantPlan())
    sessions = [inference_session(each.SerializeToString()) for each in (model, written, plain)]
    wanted, found, eight = ([each.run(None, data.sample(at))[0] for at in range(16)] for each in sessions)
    error = float(np.square(np.subtract(found, wanted)).sum())
    assert error < 0.3 * float(np.square(np.subtract(eight, wanted)).sum())
