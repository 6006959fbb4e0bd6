"""Weights fitted to the inputs that they meet: the sums of a layer lose less than with the nearest integers."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from anynpu.quantize.calibration import Dataset
from anynpu.quantize.fitting import Moments, Window, fitted
from anynpu.quantize.onnx_net import OnnxForm
from anynpu.quantize.plan import QuantPlan
from anynpu.quantize.weights import largest_integer, symmetric_scales


def correlated(rows, width, seed=0):
    """Returns inputs of which neighbours are loud together."""
    draw = np.random.default_rng(seed)
    return draw.normal(size=(rows, 6)) @ draw.normal(size=(6, width)) + 0.1 * draw.normal(size=(rows, width))


@pytest.mark.parametrize("bits", [4, 8])
def test_the_sums_of_a_dense_layer_lose_less(bits):
    inputs, weights = correlated(400, 48), np.random.default_rng(1).normal(size=(12, 48))
    moments = Moments()
    moments.rows(inputs[:200])
    scales = symmetric_scales(weights, 0, bits)
    found = fitted(weights, moments, scales, bits)
    steps = scales.reshape(-1, 1)
    integers = found / steps
    np.testing.assert_allclose(integers, np.rint(integers), atol=1e-6)
    assert np.abs(integers).max() <= largest_integer(bits) + 1e-6
    np.testing.assert_allclose(symmetric_scales(found, 0, bits), scales, rtol=1e-6)
    nearest = np.clip(np.rint(weights / steps), -largest_integer(bits), largest_integer(bits)) * steps
    losses = [float(np.square(inputs[200:] @ (each - weights).T).sum()) for each in (found, nearest)]
    assert losses[0] < 0.5 * losses[1]


def test_moments_of_a_convolution_are_those_of_what_it_reads():
    torch = pytest.importorskip("torch")
    draw = np.random.default_rng(2)
    image = draw.normal(size=(4, 9, 8))
    window = Window(kernel=(3, 2), strides=(2, 1), dilations=(1, 2), pads=(1, 0, 0, 1), groups=2)
    moments = Moments()
    moments.image(image, window)
    padded = torch.nn.functional.pad(torch.tensor(image)[None], (0, 1, 1, 0))
    read = torch.nn.functional.unfold(padded, (3, 2), dilation=(1, 2), stride=(2, 1))[0].numpy()
    for group in (0, 1):
        part = read[group * 12 : (group + 1) * 12]
        np.testing.assert_allclose(moments.sums[group], part @ part.T)


def test_weights_that_nothing_rounds_are_not_fitted():
    from anynpu.quantize.repairs import weights_fitted

    draw = np.random.default_rng(3)
    shapes = {"w": (8, 3, 1, 1), "b": (8,), "v": (4, 8, 1, 1), "d": (4,)}
    stored = {name: draw.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}
    value = lambda name, *shape: helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)  # noqa: E731
    nodes = [helper.make_node("Conv", ["x", "w", "b"], ["h"]), helper.make_node("Conv", ["h", "v", "d"], ["y"])]
    kept = [numpy_helper.from_array(array, name) for name, array in stored.items()]
    graph = helper.make_graph(nodes, "g", [value("x", 1, 3, 4, 4)], [value("y", 1, 4, 4, 4)], kept)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    form = OnnxForm(onnx.shape_inference.infer_shapes(model))
    data = Dataset({"x": draw.normal(size=(4, 3, 4, 4)).astype(np.float32)}, None, "x")
    for plan, count in ((QuantPlan(), 2), (QuantPlan(float_tensors=("y",)), 1), (QuantPlan(float_tensors=("h",)), 0)):
        assert weights_fitted(form, data, plan)[1] == count


def test_what_training_has_left_of_a_dead_channel_has_a_scale_that_files_can_hold():
    weights = np.array([[0.5, -2.0], [3e-36, 1e-36], [0.0, 0.0], [0.25, 0.125]], np.float32)
    scales = symmetric_scales(weights, 0, 8).astype(np.float32)
    np.testing.assert_allclose(scales * 127, [2.0, 0.25, 0.25, 0.25], rtol=1e-6)
    assert (scales * np.float32(1e-4) > 0).all()
