"""Ranges that most samples keep to: narrower around functions behind convolutions, and nowhere else."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from anynpu.lowering.integer_file import quantize_file
from anynpu.lowering.lower import lower
from anynpu.lowering.write import to_bytes
from anynpu.quantize.calibration import Dataset
from anynpu.quantize.measured import FEWEST
from anynpu.quantize.onnx_net import OnnxForm
from anynpu.quantize.plan import QuantPlan
from anynpu.quantize.qdq import model_ranges, write_qdq
from tests.kit.lowered_nets import by_litert, by_onnx, decibels

CHANNELS, SIDE, COUNT = 8, 12, 40


def net(function: str = "silu", pooled: bool = False) -> onnx.ModelProto:
    """Three convolutions; two of them have a function behind them, and what these give is joined for the third, whose
    places may be averaged."""
    draw = np.random.default_rng(3)
    nodes, stored = [], []
    for at, (source, result, inputs) in enumerate((("x", "c0", 3), ("z0", "c1", CHANNELS), ("joined", "y", 16))):
        weights = draw.normal(0, 1, (CHANNELS, inputs, 3, 3)) / np.sqrt(4 * inputs)
        stored.append(numpy_helper.from_array(weights.astype(np.float32), f"w{at}"))
        stored.append(numpy_helper.from_array(draw.normal(0, 0.1, CHANNELS).astype(np.float32), f"b{at}"))
        if at == 2:
            nodes.append(helper.make_node("Concat", ["z0", "z1"], ["joined"], axis=1))
        result = "map" if pooled and at == 2 else result
        nodes.append(helper.make_node("Conv", [source, f"w{at}", f"b{at}"], [result], pads=[1] * 4))
        if at < 2 and function == "silu":
            nodes.append(helper.make_node("Sigmoid", [result], [f"s{at}"]))
            nodes.append(helper.make_node("Mul", [result, f"s{at}"], [f"z{at}"]))
        elif at < 2:
            nodes.append(helper.make_node("Relu", [result], [f"z{at}"]))
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, (1, 3, SIDE, SIDE))]
    if pooled:
        nodes.append(helper.make_node("GlobalAveragePool", ["map"], ["y"]))
    sides = (1, 1) if pooled else (SIDE, SIDE)
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, (1, CHANNELS, *sides))]
    graph = helper.make_graph(nodes, "net", inputs, outputs, stored)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    return onnx.shape_inference.infer_shapes(model)


def samples(count: int = COUNT, seed: int = 1, loud: bool = True) -> np.ndarray:
    """Ordinary samples; a corner of every tenth is three times as loud."""
    values = np.random.default_rng(seed).normal(0, 1, (count, 3, SIDE, SIDE))
    values[::10, :, :3, :3] *= 3 if loud else 1
    return values.astype(np.float32)


def dataset(count: int = COUNT) -> Dataset:
    return Dataset({"x": samples(count)}, None, "x")


def test_ranges_hold_what_most_samples_need():
    first = model_ranges(OnnxForm(net()), dataset(), QuantPlan())
    narrow, observed = first.ranges, first.observed
    wide = model_ranges(OnnxForm(net()), dataset(), QuantPlan(method="minmax")).ranges
    for name in ("c0", "z0", "c1", "z1", "joined"):
        assert wide[name].max / 4 <= narrow[name].max < 0.6 * wide[name].max
    for name in ("c0", "z0", "c1", "z1"):
        assert np.mean(np.asarray(observed.highs[name]) <= narrow[name].max) == 0.7
    assert narrow["joined"].max == max(narrow[name].max for name in ("z0", "z1"))
    assert narrow["x"] == wide["x"] and narrow["y"] == wide["y"]


@pytest.mark.parametrize(
    ("function", "count", "plan"),
    [
        ("relu", COUNT, QuantPlan()),
        ("silu", FEWEST - 1, QuantPlan()),
        ("silu", COUNT, QuantPlan(bias_correction=False)),
        ("silu", COUNT, QuantPlan(activations="int16")),
    ],
)
def test_all_values_count_where_no_bias_gives_their_means_back(function, count, plan):
    ranges = model_ranges(OnnxForm(net(function)), dataset(count), plan).ranges
    wide = model_ranges(OnnxForm(net(function)), dataset(count), QuantPlan(method="minmax")).ranges
    assert [ranges[name].max for name in ("z0", "z1")] == [wide[name].max for name in ("z0", "z1")]


def test_all_values_count_where_the_answer_is_a_mean_of_places():
    ranges, wide = (
        model_ranges(OnnxForm(net(pooled=True)), dataset(), QuantPlan(method=method)).ranges
        for method in ("auto", "minmax")
    )
    assert [ranges[name].max for name in ("z0", "z1")] == [wide[name].max for name in ("z0", "z1")]


def lowered(model: onnx.ModelProto, folder: Path) -> bytes:
    given, out = folder / "float.tflite", folder / "integers.tflite"
    given.write_bytes(to_bytes(lower(model)))
    quantize_file(given, dataset(), QuantPlan(wide_tensors=("x", "y")), out)
    return out.read_bytes()


def test_ordinary_samples_gain_on_both_emitters(tmp_path, monkeypatch):
    model, new = net(), {"x": samples(24, 2, loud=False)}
    truth = by_onnx(model, new)

    def losses() -> list[float]:
        qdq = write_qdq(model, dataset(), QuantPlan(wide_tensors=("x", "y")))
        return [decibels(truth, by_onnx(qdq, new)), decibels(truth, by_litert(lowered(model, tmp_path), new))]

    gained = losses()
    for module in ("anynpu.quantize.qdq", "anynpu.lowering.integer_file"):
        monkeypatch.setattr(f"{module}.kept_by_most", lambda net, ranges, *rest: dict(ranges))
    assert all(after > before + 0.5 for before, after in zip(losses(), gained, strict=True))
