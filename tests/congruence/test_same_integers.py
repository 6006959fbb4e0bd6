"""The two emitters give the same integers where their arithmetic is the same: weights and biases of zoo models."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from anynpu.lowering.integer_file import quantize_file
from anynpu.lowering.lower import lower
from anynpu.lowering.read import from_bytes
from anynpu.lowering.write import to_bytes
from anynpu.quantize.calibration import Dataset
from anynpu.quantize.plan import QuantPlan
from anynpu.quantize.qdq import write_qdq
from anynpu.source import zoo

pytest.importorskip("ai_edge_litert")
# Repairs read the activations of other kernels, which differ in their last bits; equalisation is for TFLite alone.
PLAN = QuantPlan(equalize=False, bias_correction=False)
ORDER = {"CONV_2D": (0, 3, 1, 2), "DEPTHWISE_CONV_2D": (3, 0, 1, 2), "FULLY_CONNECTED": (0, 1)}


def qdq_layers(model):
    """Returns weights, biases, their scales and the input's scale of each layer, by the name of its weights."""
    stored = {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
    makers = {name: node for node in model.graph.node for name in node.output}
    layers = {}
    for node in model.graph.node:
        if node.op_type not in ("Conv", "Gemm"):
            continue
        fed, weights, bias = (makers[name] for name in node.input[:3])
        integers, scale = stored[weights.input[0]], stored[weights.input[1]]
        turned = node.op_type == "Gemm" and not any(item.name == "transB" and item.i for item in node.attribute)
        name = weights.input[0].removesuffix("_quantized")
        layers[name] = (integers.T if turned else integers, scale, stored[bias.input[0]], stored[fed.input[1]])
    return layers


def tflite_layers(content):
    graph = from_bytes(content)
    layers = {}
    for operator in graph.operators:
        if operator.kind not in ORDER:
            continue
        source, weights, bias = (graph.tensors[name] for name in operator.inputs)
        integers = weights.data.transpose(ORDER[operator.kind])
        layers[weights.name] = integers, np.float32(weights.quantization.scale), bias.data, source.quantization.scale
    return layers


@pytest.mark.parametrize("name", ["resnet8", "kws", "vww", "detector"])
def test_weights_and_biases_are_the_same_integers_at_the_same_scales(name, tmp_path):
    torch = pytest.importorskip("torch")
    card = zoo.card(name)
    torch.onnx.export(
        zoo.model(name).eval(),
        (torch.zeros(card.input_shape),),
        str(tmp_path / "net.onnx"),
        input_names=[card.input_name],
        dynamo=False,
        opset_version=17,
    )
    model = onnx.load(tmp_path / "net.onnx")
    data = Dataset(dict(zoo.samples(name, "calibration", 16).inputs), None, "calibration")
    (tmp_path / "float.tflite").write_bytes(to_bytes(lower(model)))
    quantize_file(tmp_path / "float.tflite", data, PLAN, tmp_path / "model.tflite")
    ours, theirs = qdq_layers(write_qdq(model, data, PLAN)), tflite_layers((tmp_path / "model.tflite").read_bytes())
    assert len(ours) == len(theirs)
    last = {*theirs} - {*ours}  # a dense layer is turned in TFLite, and its weights have another name
    assert len(last) <= 1
    same = 0
    for name, (weights, scale, bias, fed) in ours.items():
        other_weights, other_scale, other_bias, other_fed = theirs[name if name in theirs else min(last)]
        np.testing.assert_allclose(scale, other_scale, rtol=1e-6)
        np.testing.assert_array_equal(weights, other_weights)
        # A maximum over the samples may differ in its last bits between the kernels of ONNX Runtime and LiteRT, and a
        # joined tensor has the scale of all that are joined in TFLite.
        if np.allclose(fed, other_fed, rtol=1e-5):
            np.testing.assert_allclose(bias, other_bias, rtol=1e-5, atol=1)
            same += 1
    assert same > 5
