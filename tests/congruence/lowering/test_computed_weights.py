"""Convolutions whose weights or biases are computed: as ONNX Runtime computes them, and without floats."""

from __future__ import annotations

import numpy as np
import pytest
from lowered_nets import by_litert, by_onnx, by_tflm, decibels, net, samples
from onnx import ModelProto, helper

from anynpu.lowering.integer_file import quantize_file
from anynpu.lowering.lower import lower
from anynpu.lowering.read import from_bytes
from anynpu.lowering.write import to_bytes
from anynpu.quantize.calibration import Dataset
from anynpu.quantize.plan import QuantPlan

RNG = np.random.default_rng(11)


def dynamic(image: tuple[int, ...], weights: tuple[int, ...], bias: bool = False, **settings: object) -> ModelProto:
    """Returns a net that makes its weights, and where it has one its bias, from the mean of each channel."""
    means, count, outputs = image[1], int(np.prod(weights)), weights[0]
    nodes = [
        helper.make_node("GlobalAveragePool", ["x"], ["pooled"]),
        helper.make_node("Reshape", ["pooled", "row"], ["means"]),
        helper.make_node("MatMul", ["means", "maker"], ["flat"]),
        helper.make_node("Tanh", ["flat"], ["bounded"]),
        helper.make_node("Reshape", ["bounded", "shape"], ["w"]),
        helper.make_node("MatMul", ["means", "biases"], ["biased"]),
        helper.make_node("Reshape", ["biased", "outputs"], ["b"]),
        helper.make_node("Conv", ["x", "w", "b"] if bias else ["x", "w"], ["y"], **settings),
    ]
    constants = {
        "row": np.asarray((1, means)),
        "maker": RNG.normal(0, 2, (means, count)).astype(np.float32),
        "biases": RNG.normal(0, 1, (means, outputs)).astype(np.float32),
        "shape": np.asarray(weights),
        "outputs": np.asarray((outputs,)),
    }
    return net(nodes if bias else [*nodes[:5], nodes[7]], {"x": image}, constants)


def stored_weights_computed_bias() -> ModelProto:
    model = dynamic((1, 4, 7, 6), (6, 4, 3, 3), bias=True, pads=[1, 1, 1, 1])
    weights = helper.make_tensor("w", 1, (6, 4, 3, 3), RNG.normal(0, 0.3, 6 * 4 * 9).astype(np.float32))
    model.graph.initializer.append(weights)
    kept = [node for node in model.graph.node if node.output[0] not in ("flat", "bounded", "w")]
    del model.graph.node[:]
    model.graph.node.extend(kept)
    return model


NETS = {
    "pointwise": dynamic((1, 6, 5, 7), (4, 6, 1, 1), bias=True),
    "3x3": dynamic((1, 4, 7, 6), (5, 4, 3, 3), pads=[1, 1, 1, 1]),
    "3x3 in steps, dilated": dynamic((1, 4, 11, 9), (6, 4, 3, 3), pads=[2, 0, 1, 2], strides=[2, 1], dilations=[1, 2]),
    "same": dynamic((1, 4, 8, 9), (6, 4, 3, 2), auto_pad="SAME_UPPER", strides=[2, 2]),
    "groups": dynamic((1, 6, 7, 6), (8, 3, 3, 3), bias=True, group=2),
    "each channel its own": dynamic((1, 6, 7, 6), (6, 1, 3, 3), bias=True, group=6, pads=[1, 1, 1, 1]),
    "each channel twice": dynamic((1, 3, 7, 6), (6, 1, 3, 3), group=3, pads=[1, 1, 1, 1]),
    "one axis": dynamic((1, 4, 30), (5, 4, 3), bias=True, dilations=[3], pads=[3, 3]),
    "three axes": dynamic((1, 2, 4, 5, 6), (3, 2, 2, 3, 3), bias=True, strides=[1, 2, 1]),
    "stored weights, computed bias": stored_weights_computed_bias(),
}


@pytest.mark.parametrize("model", NETS.values(), ids=[*NETS])
def test_it_computes_what_onnx_runtime_does(model):
    data = samples(model)
    assert decibels(by_onnx(model, data), by_litert(to_bytes(lower(model)), data)) > 90


@pytest.mark.parametrize("model", NETS.values(), ids=[*NETS])
def test_integers_keep_it(model, tmp_path):
    floating, result, data = tmp_path / "float.tflite", tmp_path / "integers.tflite", samples(model)
    floating.write_bytes(to_bytes(lower(model)))
    quantize_file(floating, Dataset(data, None, "test"), QuantPlan(), result)
    graph = from_bytes(result.read_bytes())
    borders = {*graph.inputs, *graph.outputs}
    assert not {t.name for t in graph.tensors.values() if t.dtype == "float32" and t.data is None} - borders
    for run in (by_litert, by_tflm):
        assert decibels(by_onnx(model, data), run(result.read_bytes(), data)) > 25
