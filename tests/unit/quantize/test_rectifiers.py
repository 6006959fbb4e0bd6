"""A rectifier is computed where the stored integers reach beyond it; onnxruntime's quantiser drops it there too."""

from __future__ import annotations

import json

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from anynpu.quantize.calibration import Dataset
from anynpu.quantize.fixed import NOTHING
from anynpu.quantize.plan import QuantPlan
from anynpu.quantize.qdq import prepare, rounded_everywhere, with_pairs, write_qdq
from anynpu.quantize.ranges import Range
from anynpu.targets.qnn.options import QnnOptions
from anynpu.targets.qnn.quantise import dialect

DRAW = np.random.default_rng(0)
DATA = {"x": DRAW.normal(size=(24, 4, 6, 6)).astype(np.float32)}


def net(*rectifier: onnx.NodeProto) -> onnx.ModelProto:
    """A convolution, a rectifier that gives `r`, and another convolution."""
    stored = {"v": DRAW.normal(size=(4, 4, 1, 1)), "w": DRAW.normal(size=(4, 4, 1, 1)), "two": np.array(2.0)}
    nodes = [
        helper.make_node("Conv", ["x", "v"], ["c"], name="first"),
        *rectifier,
        helper.make_node("Conv", ["r", "w"], ["y"], name="last"),
    ]
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 4, 6, 6]) for name in "xy"]
    weights = [numpy_helper.from_array(values.astype(np.float32), name) for name, values in stored.items()]
    graph = helper.make_graph(nodes, "g", ends[:1], ends[1:], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)


def decibels(model: onnx.ModelProto, quantised: onnx.ModelProto) -> float:
    wanted, result = (
        np.concatenate([session.run(None, {"x": row[None]})[0] for row in DATA["x"]])
        for session in (onnxruntime.InferenceSession(each.SerializeToString()) for each in (model, quantised))
    )
    return float(10 * np.log10((wanted**2).sum() / ((wanted - result) ** 2).sum()))


RELU = helper.make_node("Relu", ["c"], ["r"], name="relu")
CLIPPED = helper.make_node("Clip", ["c", "", "two"], ["r"], name="clip")


@pytest.mark.parametrize("rectifier", [RELU, CLIPPED], ids=["below", "above"])
def test_a_stated_form_beyond_a_rectifier_keeps_it(rectifier, tmp_path):
    file = tmp_path / "edited.json"
    file.write_text(json.dumps({"tensors": {"r": {"scale": 0.08, "zero_point": 0}}}))
    model = net(rectifier)
    quantised = write_qdq(model, Dataset(DATA, None, "test"), QuantPlan(quantisation=file))
    assert decibels(model, quantised) > 25
    assert rectifier.op_type in {node.op_type for node in quantised.graph.node}


def test_a_rectifier_with_a_computed_bound_stays():
    bound = helper.make_node("ReduceMean", ["x"], ["m"], name="mean", keepdims=0)
    model = net(bound, helper.make_node("Clip", ["c", "m", "two"], ["r"], name="clip"))
    assert decibels(model, write_qdq(model, Dataset(DATA, None, "test"), QuantPlan())) > 30


def test_a_measured_range_leaves_it_to_the_rounding():
    quantised = write_qdq(net(RELU), Dataset(DATA, None, "test"), QuantPlan())
    assert "Relu" not in {node.op_type for node in quantised.graph.node}


def test_with_pairs_everywhere_a_rectifier_reads_what_is_rounded():
    """The HTP fails to compile a Clip whose input has no pair."""
    bound = helper.make_node("ReduceMean", ["x"], ["m"], name="mean", keepdims=0)
    model = net(bound, helper.make_node("Clip", ["c", "m", "two"], ["r"], name="clip"))
    options = QnnOptions()
    quantised = with_pairs(prepare(model), Dataset(DATA, None, "test"), options, dialect(options))
    makers = {name: node for node in quantised.graph.node for name in node.output}
    (clip,) = [node for node in quantised.graph.node if node.op_type == "Clip"]
    assert makers[clip.input[0]].op_type == "DequantizeLinear"
    assert decibels(model, quantised) > 30


def test_a_chip_may_want_every_rectifier():
    ranges, plan = {name: Range(-2.0, 2.0) for name in "xcy"} | {"r": Range(0.0, 2.0)}, QuantPlan()
    kept, _ = rounded_everywhere(prepare(net(RELU)), ranges, plan, NOTHING, keep_rectifiers=True)
    dropped, _ = rounded_everywhere(prepare(net(RELU)), ranges, plan, NOTHING)
    kinds = [[node.op_type for node in model.graph.node] for model in (kept, dropped)]
    assert [each.count("Relu") for each in kinds] == [1, 0]
    first, relu = (next(node for node in kept.graph.node if node.op_type == kind) for kind in ("Conv", "Relu"))
    assert relu.input[0] == first.output[0], "nothing is rounded between a layer and its rectifier"
