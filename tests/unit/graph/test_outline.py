"""Graphs as plain data: pairs become scales, outputs keep their names, settings are no tensors."""

from __future__ import annotations

import numpy as np
import pytest
from graph_nets import parse, weights

from anynpu.graph.outline import outline
from anynpu.testing.models import conv_net


def pair_net(**more):
    """Returns a Conv between pairs, with int8 weights, whose output leaves through a pair."""
    text = """
    qdq (float[1,2,4,4] x) => (float[1,3,4,4] y) {
      xq = QuantizeLinear (x, sx, zx)
      xd = DequantizeLinear (xq, sx, zx)
      wd = DequantizeLinear <axis = 0> (w_quantized, sw, zw)
      c = Conv <kernel_shape = [1, 1]> (xd, wd)
      yq = QuantizeLinear (c, sy, zy)
      y = DequantizeLinear (yq, sy, zy)
    }"""
    tensors = {
        "sx": np.float32(0.5),
        "zx": np.int8(-3),
        "w_quantized": np.ones((3, 2, 1, 1), np.int8),
        "sw": np.array([0.1, 0.2, 0.3], np.float32),
        "zw": np.zeros(3, np.int8),
        "sy": np.float32(0.25),
        "zy": np.int8(7),
    }
    return parse(text, **(tensors | more))


def test_a_float_net_is_listed_as_it_is():
    found = outline(conv_net())
    assert [n.kind for n in found.nodes] == ["Conv", "Relu", "Conv", "Relu", "GlobalAveragePool", "Flatten", "Gemm"]
    assert [n.macs for n in found.nodes] == [8 * 64 * 27, 0, 16 * 16 * 72, 0, 0, 0, 64]
    assert found.nodes[0].inputs == ("image", "w1", "b1") and found.nodes[-1].outputs == ("scores",)
    r1, w1 = found.tensors["r1"], found.tensors["w1"]
    assert (r1.shape, r1.dtype, r1.layout, r1.constant, r1.scale) == ((1, 8, 8, 8), "float32", "NCHW", False, ())
    assert w1.constant and w1.shape == (8, 3, 3, 3)


def test_pairs_are_scales_and_no_nodes():
    found = outline(pair_net())
    (conv,) = found.nodes
    assert (conv.kind, conv.inputs, conv.outputs, conv.macs) == ("Conv", ("x", "w"), ("y",), 3 * 16 * 2)
    x, w, y = (found.tensors[name] for name in "xwy")
    assert (x.dtype, x.scale, x.zero_point, x.value) == ("int8", (0.5,), (-3,), "xd")
    assert (w.dtype, len(w.scale), w.constant) == ("int8", 3, True)
    assert (y.scale, y.zero_point, y.value, y.layout) == ((0.25,), (7,), "y", "NCHW")
    assert set(found.tensors) == {"x", "w", "y"}


def test_a_node_owns_the_conversions_of_its_weights_and_outputs():
    model = pair_net()
    for number, node in enumerate(model.graph.node):
        node.name = f"n{number}_{node.op_type}"
    (conv,) = outline(model).nodes
    assert conv.kernels == ("n3_Conv", "n2_DequantizeLinear", "n4_QuantizeLinear", "n5_DequantizeLinear")


def test_settings_and_constant_expressions_are_left_out():
    text = """
    settings (float[1,6] x) => (float[2,3] y) {
      doubled = Add (half, half)
      b = Mul (x, doubled)
      c = Clip (b, low, high)
      y = Reshape (c, shape)
    }"""
    limits = {"low": np.float32(-1), "high": np.float32(1), "shape": np.array([2, 3])}
    found = outline(parse(text, half=weights(1, 6), **limits))
    assert [(n.kind, n.inputs) for n in found.nodes] == [
        ("Mul", ("x", "doubled")),
        ("Clip", ("b",)),
        ("Reshape", ("c",)),
    ]
    assert found.tensors["doubled"].constant


def test_unknown_shapes_cost_nothing_that_can_be_counted():
    model = parse("dynamic (float[N,4] x) => (float[N,2] y) { y = MatMul (x, w) }", w=weights(4, 2))
    found = outline(model)
    assert found.nodes[0].macs is None and found.tensors["x"].shape is None and found.tensors["w"].shape == (4, 2)


def test_the_outline_of_a_quantised_net_names_tensors_as_the_float_net_does():
    pytest.importorskip("onnxruntime")
    from anynpu.quantize.calibration import Dataset
    from anynpu.quantize.plan import QuantPlan
    from anynpu.quantize.qdq import write_qdq

    data = Dataset({"image": np.random.default_rng(0).normal(size=(4, 3, 8, 8)).astype(np.float32)}, None, "test")
    quantised = outline(write_qdq(conv_net(), data, QuantPlan()))
    original = outline(conv_net())
    assert set(quantised.tensors) <= set(original.tensors)
    assert [n.outputs for n in quantised.nodes] == [("r1",), ("r2",), ("mean",), ("flat",), ("scores",)]
    assert sum(n.macs for n in quantised.nodes) == sum(n.macs for n in original.nodes)
    assert all(t.scale for t in quantised.tensors.values())


def test_integers_of_contributed_operators_have_their_type():
    """Where some tensors have 16 bits, onnxruntime's quantiser writes operators that shape inference does not know."""
    pytest.importorskip("onnxruntime")
    from anynpu.quantize.calibration import Dataset
    from anynpu.quantize.plan import QuantPlan
    from anynpu.quantize.qdq import write_qdq

    model = conv_net()
    images = np.random.default_rng(0).normal(size=(8, 3, 8, 8)).astype(np.float32)
    found = outline(write_qdq(model, Dataset({"image": images}, None, "test"), QuantPlan(wide_tensors=("r1",))))
    assert found.tensors["r1"].dtype == "int16"
    assert found.tensors["image"].dtype == "int8" and found.tensors["scores"].dtype == "int8"
