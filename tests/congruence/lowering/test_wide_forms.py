"""What TFLite-Micro has in 8 bits alone runs there and in C in 16 bits too, in other operators."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from compiled import compare
from lowered_nets import by_litert, by_onnx, by_tflm, decibels, net, one, samples
from onnx import helper

from anynpu.firmware.generator import findings
from anynpu.lowering.compared import KINDS
from anynpu.lowering.graph import Graph
from anynpu.lowering.integer_file import quantize_file
from anynpu.lowering.lower import lower
from anynpu.lowering.read import from_bytes
from anynpu.lowering.wide_forms import ON_ETHOS_U, as_micro_has
from anynpu.lowering.write import to_bytes
from anynpu.quantize.calibration import Dataset
from anynpu.quantize.plan import QuantPlan
from anynpu.runtime.ethos_u.model import CpuCall
from anynpu.runtime.tflite_file import float_operators, read_model
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
    found = written(graph, plan, data, tmp_path)
    assert decibels(by_onnx(model, data), by_tflm(found, data)) > 30


def written(graph: Graph, plan: QuantPlan, data: dict[str, np.ndarray], folder: Path) -> bytes:
    """Returns the integers, which TFLite-Micro and the generated C have all kernels for."""
    floating, result = folder / "float.tflite", folder / "integers.tflite"
    floating.write_bytes(to_bytes(graph))
    assert not lacking(floating, plan, tables=False)
    graph, plan = as_micro_has(graph, plan)
    floating.write_bytes(to_bytes(graph))
    quantize_file(floating, Dataset(data, None, "test"), plan, result)
    assert not findings(result)
    return result.read_bytes()


def chosen(op: str, numbers: object, **attributes: int) -> onnx.ModelProto:
    return one(op, (1, 5, 6, 7), {"numbers": np.asarray(numbers, np.int64)}, **attributes)


CHOICES = {
    "channels": chosen("ReduceMax", [3]),
    "rows and columns": chosen("ReduceMax", [1, 2], keepdims=0),
    "rows and channels": chosen("ReduceMin", [1, -1]),
    "all": chosen("ReduceMin", [0, 1, 2, 3]),
    "one batch": chosen("ReduceMax", [0], keepdims=0),
    "numbers": chosen("Gather", [3, 0, 6, -2], axis=3),
}


@pytest.mark.parametrize("what", CHOICES)
@pytest.mark.parametrize("wide", ["int16", "wide_tensors"])
def test_values_chosen_of_16_bits_are_those_of_every_runtime(what, wide, tmp_path):
    model = CHOICES[what]
    graph, data = lower(model), samples(model)
    plan = QuantPlan(activations="int16") if wide == "int16" else QuantPlan(wide_tensors=("x",))
    found = written(graph, plan, data, tmp_path)
    np.testing.assert_array_equal(by_tflm(found, data), by_litert(found, data))
    assert decibels(by_onnx(model, data), by_litert(found, data)) > 75
    kinds = {each.kind for each in from_bytes(found).operators}
    assert not kinds & {"REDUCE_MAX", "REDUCE_MIN", "GATHER", "DEQUANTIZE"}


@pytest.mark.parametrize("op", ["Less", "GreaterOrEqual", "Equal"])
@pytest.mark.parametrize("wide", ["int16", "wide_tensors"])
def test_comparisons_of_16_bits_are_of_whole_numbers(op, wide, tmp_path):
    """Steps of 8 bits would take a hundredth of the numbers for the same."""
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["a"]),
        helper.make_node("Mul", ["a", "near"], ["b"]),
        helper.make_node("Max", ["a", "b"], ["m"]) if op == "Equal" else helper.make_node("Identity", ["b"], ["m"]),
        helper.make_node(op, ["a", "m"], ["c"]),
        helper.make_node("Where", ["c", "x", "none"], ["y"]),
    ]
    constants = {"w": np.eye(8, dtype=np.float32), "near": np.float32(1.004), "none": np.float32(0)}
    model = net(nodes, {"x": (1, 60, 8)}, constants)
    graph, data = lower(model), samples(model)
    [operator] = [each for each in graph.operators if each.kind in KINDS]
    plan = QuantPlan(activations="int16") if wide == "int16" else QuantPlan(wide_tensors=operator.inputs)
    found = written(graph, plan, data, tmp_path)
    integers = from_bytes(found)
    assert not float_operators(read_model(found))
    [sides] = [each.inputs for each in integers.operators if each.kind in KINDS]
    assert {integers.tensors[name].dtype for name in sides} == {"int32"}
    np.testing.assert_array_equal(by_tflm(found, data), by_litert(found, data))
    assert decibels(by_onnx(model, data), by_litert(found, data)) > 25


def test_a_resize_of_8_bits_stays(tmp_path):
    graph, plan = lower(resized("half_pixel")), QuantPlan()
    assert as_micro_has(graph, plan) == (graph, plan)


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("wide", ["int16", "wide_tensors"])
def test_a_product_of_matrices_of_16_bits_is_one_of_elements_on_ethos_u(turned, wide, tmp_path):
    """An Ethos-U55 has that of 8 bits alone, and left the other to its CPU."""
    pytest.importorskip("ethosu")
    nodes = [
        helper.make_node("Mul", ["x", "two"], ["a"]),
        helper.make_node("Transpose", ["z"], ["b"], perm=[0, 1, 3, 2] if turned else [0, 1, 2, 3]),
        helper.make_node("MatMul", ["a", "b"], ["y"]),
    ]
    shapes = {"x": (1, 3, 6, 8), "z": (1, 3, 5, 8) if turned else (1, 3, 8, 5)}
    model = net(nodes, shapes, {"two": np.float32(2)})
    graph, data = lower(model), samples(model)
    plan = QuantPlan(activations="int16") if wide == "int16" else QuantPlan(wide_tensors=("y", "x", "z"))
    graph, plan = as_micro_has(graph, plan, ON_ETHOS_U)
    found = written(graph, plan, data, tmp_path)
    assert "BATCH_MATMUL" not in {each.kind for each in graph.operators}
    assert decibels(by_onnx(model, data), by_litert(found, data)) > 70
    result = compare(tmp_path / "integers.tflite", "ethos-u55-128", tmp_path)
    assert result.worst <= 1 and not any(isinstance(call, CpuCall) for call in result.model.calls)


def test_a_product_of_large_matrices_stays(tmp_path):
    graph = lower(net([helper.make_node("MatMul", ["x", "z"], ["y"])], {"x": (1, 8, 200, 64), "z": (1, 8, 64, 200)}))
    plan = QuantPlan(activations="int16")
    assert as_micro_has(graph, plan, ON_ETHOS_U)[0].counts()["BATCH_MATMUL"] == 1
