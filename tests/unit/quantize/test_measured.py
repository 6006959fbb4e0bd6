"""Biases that are measured behind functions, for both emitters: means come back, and only where there is something to
measure."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from anynpu.lowering.integer_file import quantize_file
from anynpu.lowering.lower import lower
from anynpu.lowering.write import to_bytes
from anynpu.quantize import measured as module
from anynpu.quantize import qdq
from anynpu.quantize.calibration import Dataset
from anynpu.quantize.measured import FEWEST, places
from anynpu.quantize.onnx_net import net_of
from anynpu.quantize.plan import QuantPlan
from tests.kit.lowered_nets import by_litert

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
        elif at < DEPTH - 1 and function in ("relu", "leaky", "half"):
            kind, stated = {"relu": ("Relu", {}), "leaky": ("LeakyRelu", {"alpha": 0.1})}.get(function, ("Mul", {}))
            nodes.append(helper.make_node(kind, [result, "half"][: 1 + (kind == "Mul")], [source], **stated))
        elif at < DEPTH - 1:
            nodes.append(helper.make_node("Relu", [result], [f"r{at}"]))
            nodes.append(helper.make_node("Add", [f"r{at}", "half"], [source]))
    if function in ("half", "relu and a half"):
        stored.append(numpy_helper.from_array(np.float32(0.5), "half"))
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


def lowered(model: onnx.ModelProto, folder: Path, count: int = 2 * FEWEST) -> tuple[Path, dict[str, int]]:
    given, out = folder / "float.tflite", folder / "integers.tflite"
    given.write_bytes(to_bytes(lower(onnx.shape_inference.infer_shapes(model), ["x"], ["y"])))
    channels_last = np.ascontiguousarray(np.moveaxis(samples(count, 1), 1, -1))
    figures = quantize_file(given, Dataset({"x": channels_last}, None, "x"), QuantPlan(), out)
    return out, {effect.name: effect.changed for effect in figures["passes"]}


def integer_outputs(file: Path, x: np.ndarray) -> np.ndarray:
    answers = by_litert(file.read_bytes(), {"x": np.moveaxis(x, 1, -1)}).reshape(len(x), SIDE, SIDE, CHANNELS)
    return np.moveaxis(answers, -1, 1)


def come_back(exact: np.ndarray, plain: np.ndarray, measured: np.ndarray) -> None:
    """Checks that measured biases bring the means of channels back, at no cost to single values."""
    lost = [np.abs((each - exact).mean(axis=(0, 2, 3))).mean() for each in (plain, measured)]
    errors = [np.square(each - exact).mean() for each in (plain, measured)]
    assert lost[1] < 0.6 * lost[0]
    assert errors[1] < 1.02 * errors[0]


def test_means_of_new_samples_come_back(monkeypatch):
    model, new = net(), samples(64, 2)
    measured, done = quantised(model)
    assert done["measured-biases"] == DEPTH
    monkeypatch.setattr(module, "biases_measured", lambda form, *rest: (form, 0))
    plain, _ = quantised(model)
    come_back(outputs(model, new), outputs(plain, new), outputs(measured, new))


def test_means_of_new_samples_come_back_in_tflite(tmp_path, monkeypatch):
    model, new = net(), samples(64, 2)
    file, done = lowered(model, tmp_path)
    measured = integer_outputs(file, new)
    assert done["measured-biases"] == DEPTH
    monkeypatch.setattr(module, "biases_measured", lambda form, *rest: (form, 0))
    plain = integer_outputs(lowered(model, tmp_path)[0], new)
    come_back(outputs(model, new), plain, measured)


def test_a_function_that_is_read_twice_is_measured_in_tflite(tmp_path):
    model = net()
    # The third convolution reads what the first function gives beside what the second does.
    model.graph.node.insert(6, helper.make_node("Add", ["z0", "z1"], ["sum"]))
    model.graph.node[7].input[0] = "sum"
    assert lowered(model, tmp_path)[1]["measured-biases"] == DEPTH


@pytest.mark.parametrize(
    ("function", "count"),
    [("relu", 2 * FEWEST), ("half", 2 * FEWEST), ("relu and a half", 2 * FEWEST), ("silu", FEWEST - 1)],
)
def test_without_functions_or_samples_nothing_is_measured(function, count, tmp_path):
    assert quantised(net(function), count)[1]["measured-biases"] == 0
    assert lowered(net(function), tmp_path, count)[1]["measured-biases"] == 0


def test_a_rectifier_that_leaks_is_measured():
    assert len(places(net_of(onnx.shape_inference.infer_shapes(net("leaky")).graph), ())) == DEPTH


def test_what_stays_in_floating_point_is_not_measured():
    view = net_of(onnx.shape_inference.infer_shapes(net()).graph)
    assert [place.behind for place in places(view, ())] == [*(f"z{at}" for at in range(DEPTH - 1)), "y"]
    assert [place.result for place in places(view, {"c1", "z3"})] == ["c0", "c2", "c4", "y"]
