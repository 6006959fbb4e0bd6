"""Averages of windows with gaps are depthwise convolutions: ONNX Runtime says what they are."""

from __future__ import annotations

import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto, checker, helper, shape_inference

from anynpu.graph.dilated import with_convolutions


def pool(size, opset=19, **settings):
    graph = helper.make_graph(
        [helper.make_node("AveragePool", ["x"], ["y"], **settings)],
        "net",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, size)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=9)
    return shape_inference.infer_shapes(model)


POOLS = {
    "one axis": ((2, 3, 12), {"kernel_shape": [3], "dilations": [2]}),
    "rounded up": ((1, 3, 12), {"kernel_shape": [3], "dilations": [2], "strides": [2], "ceil_mode": 1}),
    "pads that are not counted": ((1, 2, 9, 8), {"kernel_shape": [3, 3], "dilations": [2, 2], "pads": [2] * 4}),
    "pads that are counted": (
        (1, 3, 12, 12),
        {
            "kernel_shape": [3, 2],
            "dilations": [2, 3],
            "pads": [1, 1, 2, 1],
            "strides": [2, 1],
            "count_include_pad": 1,
        },
    ),
    "VALID": ((1, 2, 9, 10), {"kernel_shape": [2, 3], "dilations": [3, 2], "auto_pad": "VALID"}),
    "three axes": ((1, 2, 5, 6, 7), {"kernel_shape": [2, 2, 2], "dilations": [2, 3, 1]}),
}


@pytest.mark.parametrize("what", POOLS)
def test_an_average_with_gaps_is_a_convolution(what):
    size, settings = POOLS[what]
    model = pool(size, **settings)
    changed, count = with_convolutions(model)
    checker.check_model(changed, full_check=True)
    assert count == 1 and not any(node.op_type == "AveragePool" for node in changed.graph.node)
    x = {"x": np.random.default_rng(0).normal(size=size).astype(np.float32)}
    before, after = (
        onnxruntime.InferenceSession(each.SerializeToString()).run(None, x)[0] for each in (model, changed)
    )
    np.testing.assert_allclose(after, before, atol=1e-6)


def test_other_averages_stay():
    model = pool((1, 3, 9, 9), kernel_shape=[3, 3], dilations=[1, 1])
    assert with_convolutions(model) == (model, 0)
    model = pool((1, 2, 9, 10), kernel_shape=[2, 3], dilations=[3, 2], auto_pad="SAME_UPPER")
    assert with_convolutions(model) == (model, 0)
    # The first window reads pads alone
    model = pool((1, 3, 4), kernel_shape=[2], dilations=[2], pads=[3, 0])
    assert with_convolutions(model) == (model, 0)
