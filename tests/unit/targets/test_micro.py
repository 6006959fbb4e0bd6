"""TFLite-Micro is asked about every operator of a model, and every refusal is listed."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from anynpu.lowering.lower import lower
from anynpu.lowering.write import to_bytes
from anynpu.quantize.plan import QuantPlan
from anynpu.targets.micro import lacking


def findings(nodes, constants, folder, outputs=("y",), inputs=(("x", TensorProto.FLOAT, [1, 12]),)):
    graph = helper.make_graph(
        nodes,
        "net",
        [helper.make_tensor_value_info(*each) for each in inputs],
        [onnx.ValueInfoProto(name=name) for name in outputs],
        [numpy_helper.from_array(array, name) for name, array in constants.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    path = folder / "float.tflite"
    path.write_bytes(to_bytes(lower(onnx.shape_inference.infer_shapes(model, data_prop=True))))
    return lacking(path, QuantPlan(), True)


def test_every_operator_without_a_kernel_is_listed(tmp_path):
    nodes = [
        helper.make_node("Sigmoid", ["x"], ["a"]),
        helper.make_node("TopK", ["a", "k"], ["y", "places"]),
        helper.make_node("Gather", ["table", "places"], ["numbers"]),
    ]
    constants = {"k": np.asarray([70]), "table": np.arange(80, dtype=np.int64)}  # up to 64 are found one by one
    found = findings(nodes, constants, tmp_path, ("y", "numbers"), (("x", TensorProto.FLOAT, [1, 80]),))
    assert {each.message.partition(" ")[0] for each in found} == {"TOPK_V2", "GATHER"}
    assert all(each.where for each in found)
    assert any("Type 'INT32' is not supported by gather" in each.message for each in found)


def test_a_net_that_runs_has_no_findings(tmp_path):
    nodes = [helper.make_node("MatMul", ["x", "w"], ["a"]), helper.make_node("Tanh", ["a"], ["y"])]
    assert findings(nodes, {"w": np.eye(12, dtype=np.float32)}, tmp_path) == ()
