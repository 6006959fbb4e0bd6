"""Biases that are measured behind functions: means come back, and only where there is something to measure."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from anynpu.quantize import qdq
from anynpu.quantize.calibration import Dataset
from anynpu.quantize.measured import FEWEST, places
from anynpu.quantize.onnx_net import net_of
from anynpu.quantize.plan import QuantPlan

DEPTH, CHANNELS, SIDE = 6, 12, 16


def net(function: str = "silu") -> onnx.ModelProto:
    """Convolutions, each but the last with a function behind it."""
    draw = np.random.default_rng(5)
    nodes, stored, source = [], [], "x"
    for at in range(DEPTH):
        inputs = 3 if at == 0 else CHANNELS
        weights = draw.normal(0, 1, (CHANNELS, inputs, 3, 3)) / np.sqrt(6 * inputs)
        stored.append(numpy_helper.from_array(weights.astype(np.float32), f"w{at}"))
        stored.append(numpy_helper.from_array(draw.normal(0, 0.3, CHANNELS).astype(np.float32), f"b{at}"))
        result = "y" if at == DEPTH - 1 else f"c{at}"
        nodes.append(
            helper.make_node("Conv", [source, f"w{at}", f"b{at}"], [result], kernel_shape=[3, 3], pads=[1] * 4)
        )
        source = f"z{at}"
        if at < DEPTH - 1 and function == "silu":
            nodes.append(helper.make_node("Sigmoid", [result], [f"s{at}"]))
            nodes.append(helper.make_node("Mul", [result, f"s{at}"], [source]))
        elif at < DEPTH - 1:
            nodes.append(helper.make_node("Relu", [result], [source]))
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, (1, 3, SIDE, SIDE))]
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, (1, CHANNELS, SIDE, SIDE))]
    graph = helper.make_graph(nodes, "net", inputs, outputs, stored)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def samples(count: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(0, 1, (count, 3, SIDE, SIDE)).astype(np.float32)


def outputs(model: onnx.ModelProto, x: np.ndarray) -> np.ndarray:
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return np.concatenate([session.run(None, {"x": row[None]})[0] for row in x])


def quantised(model: onnx.ModelProto, count: int = 2 * FEWEST) -> tuple[onnx.ModelProto, dict[str, int]]:
    effects: list = []
    result = qdq.write_qdq(model, Dataset({"x": samples(count, 1)}, None, "x"), QuantPlan(), effects=effects)
    return result, {effect.name: effect.changed for effect in effects}


def test_means_of_new_samples_come_back(monkeypatch):
    model, new = net(), samples(64, 2)
    exact = outputs(model, new)
    measured, done = quantised(model)
    assert done["measured-biases"] == DEPTH
    monkeypatch.setattr(qdq, "biases_measured", lambda form, *rest: (form, 0))
    plain, _ = quantised(model)
    lost = [np.abs((outputs(each, new) - exact).mean(axis=(0, 2, 3))).mean() for each in (plain, measured)]
    errors = [np.square(outputs(each, new) - exact).mean() for each in (plain, measured)]
    assert lost[1] < 0.6 * lost[0]
    assert errors[1] < 1.02 * errors[0]


@pytest.mark.parametrize(("function", "count"), [("relu", 2 * FEWEST), ("silu", FEWEST - 1)])
def test_without_functions_or_samples_nothing_is_measured(function, count):
    assert quantised(net(function), count)[1]["measured-biases"] == 0


def test_what_stays_in_floating_point_is_not_measured():
    view = net_of(onnx.shape_inference.infer_shapes(net()).graph)
    assert [place.behind for place in places(view, ())] == [*(f"z{at}" for at in range(DEPTH - 1)), "y"]
    assert [place.result for place in places(view, {"c1", "z3"})] == ["c0", "c2", "c4", "y"]
