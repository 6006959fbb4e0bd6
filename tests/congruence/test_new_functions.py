"""Operators that only newer opsets have: written out for QDQ, they compute what ONNX Runtime does with them."""

from __future__ import annotations

import numpy as np
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

from anynpu.quantize.qdq import prepare


def attention():
    """Returns a net of opset 23 with an attention whose mask is computed, as PyTorch's exporter writes one."""
    shape = [1, 2, 5, 8]
    nodes = [
        helper.make_node("Greater", ["m", "half"], ["seen"], name="seen"),
        helper.make_node("Tanh", ["x"], ["q"], name="q"),
        helper.make_node("Attention", ["q", "x", "x", "seen"], ["y"], name="attend"),
    ]
    graph = helper.make_graph(
        nodes,
        "net",
        [
            helper.make_tensor_value_info("x", TensorProto.FLOAT, shape),
            helper.make_tensor_value_info("m", TensorProto.FLOAT, [1, 1, 5, 5]),
        ],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, shape)],
        [numpy_helper.from_array(np.asarray(0.5, np.float32), "half")],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 23)], ir_version=11)


def run(model, feeds):
    return onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"]).run(None, feeds)


def test_an_attention_is_written_out_before_its_tensors_are_quantised():
    model, rng = attention(), np.random.default_rng(0)
    mask = np.maximum(rng.random((1, 1, 5, 5)), np.eye(5)).astype(np.float32)
    feeds = {"x": rng.normal(size=(1, 2, 5, 8)).astype(np.float32), "m": mask}
    plain = prepare(model)
    kinds = [node.op_type for node in plain.graph.node]
    assert "Attention" not in kinds and "Softmax" in kinds and not {"Identity", "Cast", "CastLike"} & {*kinds[:-1]}
    stored = [numpy_helper.to_array(item) for item in plain.graph.initializer]
    assert all(np.isfinite(array).all() for array in stored if array.dtype.kind == "f")
    np.testing.assert_allclose(run(plain, feeds)[0], run(model, feeds)[0], atol=1e-5)
