"""Normalised nets in QDQ form: whole operators are not rounded inside, and loud channels are smoothed."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from anynpu.graph.run import Session
from anynpu.quantize.calibration import Dataset
from anynpu.quantize.plan import QuantPlan
from anynpu.quantize.qdq import prepare, write_qdq
from anynpu.quantize.smooth import smooth
from anynpu.runtime.ort import inference_session

TOKENS, WIDTH = 6, 16
NODE = helper.make_node


def norm(x, y, written, stored):
    """Returns a layer norm, or the same written out as exporters of older opsets do."""
    if not written:
        return [NODE("LayerNormalization", [x, f"{y}.scale", f"{y}.bias"], [y], name=y, epsilon=1e-5)]
    stored |= {"two": np.float32(2), "epsilon": np.float32(1e-5)}
    return [
        NODE("ReduceMean", [x], [f"{y}.m"], axes=[-1]),
        NODE("Sub", [x, f"{y}.m"], [f"{y}.c"]),
        NODE("Pow", [f"{y}.c", "two"], [f"{y}.q"]),
        NODE("ReduceMean", [f"{y}.q"], [f"{y}.v"], axes=[-1]),
        NODE("Add", [f"{y}.v", "epsilon"], [f"{y}.e"]),
        NODE("Sqrt", [f"{y}.e"], [f"{y}.r"]),
        NODE("Div", [f"{y}.c", f"{y}.r"], [f"{y}.d"]),
        NODE("Mul", [f"{y}.d", f"{y}.scale"], [f"{y}.g"]),
        NODE("Add", [f"{y}.g", f"{y}.bias"], [y]),
    ]


def block(mask=-1e9, written=False, seed=0):
    """An attention of one head and a dense layer, each added to what went in and normalised; one channel is loud."""
    draw = np.random.default_rng(seed)
    loud = np.where(np.arange(WIDTH) == 3, 40.0, 1.0)
    weight = lambda: draw.normal(0, WIDTH**-0.5, (WIDTH, WIDTH))  # noqa: E731
    stored = {name: weight() for name in ("q", "k", "v", "up")} | {name: weight() * loud for name in ("out", "down")}
    for name in ("n0", "n1", "n2"):
        stored |= {f"{name}.scale": draw.uniform(0.2, 2, WIDTH), f"{name}.bias": draw.normal(0, 0.3, WIDTH)}
    stored["mask"] = np.where(np.arange(TOKENS) < TOKENS - 2, 0.0, mask)
    stored["end"] = weight()
    nodes = [
        *norm("x", "n0", written, stored),
        *(NODE("MatMul", ["n0", name], [f"{name}.y"]) for name in "qkv"),
        NODE("Transpose", ["k.y"], ["k.t"], perm=[0, 2, 1]),
        NODE("MatMul", ["q.y", "k.t"], ["scores"]),
        NODE("Add", ["scores", "mask"], ["masked"]),
        NODE("Softmax", ["masked"], ["shares"], axis=-1),
        NODE("MatMul", ["shares", "v.y"], ["mixed"]),
        NODE("MatMul", ["mixed", "out"], ["out.y"]),
        NODE("Add", ["n0", "out.y"], ["s1"]),
        *norm("s1", "n1", written, stored),
        NODE("MatMul", ["n1", "up"], ["up.y"]),
        NODE("Tanh", ["up.y"], ["h"]),
        NODE("MatMul", ["h", "down"], ["down.y"]),
        NODE("Add", ["n1", "down.y"], ["s2"]),
        *norm("s2", "n2", written, stored),
        NODE("MatMul", ["n2", "end"], ["y"]),
    ]
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes,
        "block",
        [value("x", TensorProto.FLOAT, [1, TOKENS, WIDTH])],
        [value("y", TensorProto.FLOAT, [1, TOKENS, WIDTH])],
        [numpy_helper.from_array(np.asarray(array, np.float32), name) for name, array in stored.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    onnx.checker.check_model(model)
    return model


SAMPLES = np.random.default_rng(5).normal(0, 1, (24, TOKENS, WIDTH)).astype(np.float32)


def run(model):
    session = Session(model)
    return np.concatenate([session.run({"x": sample[np.newaxis]})[0] for sample in SAMPLES])


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
    smooth(model, Dataset({"x": SAMPLES}, None, "drawn"))
    assert any(node.name.endswith("/restored") for node in model.graph.node)
    assert np.allclose(run(model), wanted, atol=1e-4)


def test_smoothing_pays():
    gains = [sqnr(block(seed=seed)) - sqnr(block(seed=seed), QuantPlan(equalize=False)) for seed in range(4)]
    assert np.mean(gains) > 2


def test_a_softmax_over_many_places_right_behind_a_product():
    """Rounded on both sides it becomes onnxruntime's QLinearSoftmax, which gives 1 dB here."""
    draw = np.random.default_rng(0)
    stored = {"keys": draw.normal(0, 0.02, (8, 1024)), "values": draw.normal(0, 30, (1024, 16))}
    nodes = [
        NODE("MatMul", ["x", "keys"], ["scores"]),
        NODE("Softmax", ["scores"], ["shares"], axis=-1),
        NODE("MatMul", ["shares", "values"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "net",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 4, 8])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 4, 16])],
        [numpy_helper.from_array(value.astype(np.float32), name) for name, value in stored.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    samples = Dataset({"x": draw.normal(0, 1, (16, 4, 8)).astype(np.float32)}, None, "test")
    sessions = [inference_session(each.SerializeToString()) for each in (model, write_qdq(model, samples, QuantPlan()))]
    wanted, got = (np.stack([s.run(["y"], samples.sample(i))[0] for i in range(16)]) for s in sessions)
    assert 10 * np.log10(np.square(wanted).sum() / np.square(wanted - got).sum()) > 25
