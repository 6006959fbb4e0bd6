"""Bilinear resizes of 16 bits run on TFLite-Micro and in C, as products."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import onnx
import pytest
from lowered_nets import by_onnx, by_tflm, decibels, net, samples
from onnx import helper

from anynpu.firmware.generator import findings
from anynpu.lowering.integer_file import quantize_file
from anynpu.lowering.lower import lower
from anynpu.lowering.wide_resizes import without_wide_resizes
from anynpu.lowering.write import to_bytes
from anynpu.quantize.calibration import Dataset
from anynpu.quantize.plan import QuantPlan
from anynpu.targets.micro import lacking


def resized(where: str) -> onnx.ModelProto:
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["a"], pads=[1, 1, 1, 1]),
        helper.make_node("Resize", ["a", "", "", "size"], ["b"], mode="linear", coordinate_transformation_mode=where),
        helper.make_node("Relu", ["b"], ["y"]),
    ]
    weights = np.random.default_rng(3).normal(0, 0.3, (5, 3, 3, 3)).astype(np.float32)
    return net(nodes, {"x": (1, 3, 6, 7)}, {"w": weights, "size": np.asarray([1, 5, 12, 21], np.int64)})


@pytest.mark.parametrize("where", ["half_pixel", "align_corners"])
@pytest.mark.parametrize("plan", [QuantPlan(activations="int16"), QuantPlan(wide_tensors=("b",))])
def test_a_wide_resize_runs_everywhere(where, plan, tmp_path):
    model = resized(where)
    graph, data = lower(model), samples(model)
    assert any(each.kind == "RESIZE_BILINEAR" for each in graph.operators)
    if plan.wide_tensors:
        name = next(each.outputs[0] for each in graph.operators if each.kind == "RESIZE_BILINEAR")
        plan = replace(plan, wide_tensors=(name,))
    floating, result = tmp_path / "float.tflite", tmp_path / "integers.tflite"
    floating.write_bytes(to_bytes(graph))
    assert not lacking(floating, plan, tables=False)
    products, plan = without_wide_resizes(graph, plan)
    floating.write_bytes(to_bytes(products))
    quantize_file(floating, Dataset(data, None, "test"), plan, result)
    assert not findings(result)
    assert decibels(by_onnx(model, data), by_tflm(result.read_bytes(), data)) > 30


def test_a_resize_of_8_bits_stays(tmp_path):
    graph, plan = lower(resized("half_pixel")), QuantPlan()
    assert without_wide_resizes(graph, plan) == (graph, plan)
