"""Whole numbers and truth values that are moved and summed, in operators that TFLite-Micro and the generated C have."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from lowered_nets import by_litert, by_onnx, by_tflm
from onnx import TensorProto, helper, numpy_helper

from anynpu.firmware.generator import findings
from anynpu.lowering.ethos_u import for_ethos_u
from anynpu.lowering.lower import lower
from anynpu.lowering.write import to_bytes
from anynpu.targets.vela.constraints import table

node = helper.make_node


def whole(nodes: list[onnx.NodeProto], shape: tuple[int, ...], **constants: np.ndarray) -> onnx.ModelProto:
    """Returns a model of the whole numbers x that gives the whole numbers y."""
    inputs = [helper.make_tensor_value_info("x", TensorProto.INT64, list(shape))]
    stored = [numpy_helper.from_array(array, name) for name, array in constants.items()]
    graph = helper.make_graph(nodes, "net", inputs, [onnx.ValueInfoProto(name="y")], stored)
    graph.output[0].type.tensor_type.elem_type = TensorProto.INT64
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    return onnx.shape_inference.infer_shapes(model)


def moved(shape: tuple[int, ...], order: tuple[int, ...]) -> onnx.ModelProto:
    last = np.arange(np.prod(shape)).reshape([shape[axis] for axis in order])
    return whole([node("Transpose", ["x"], ["t"], perm=order), node("Add", ["t", "c"], ["y"])], shape, c=last)


def moved_truths() -> onnx.ModelProto:
    nodes = [
        node("Greater", ["x", "two"], ["t"]),
        node("Transpose", ["t"], ["u"], perm=[0, 2, 1]),
        node("Cast", ["u"], ["v"], to=TensorProto.INT64),
        node("Add", ["v", "c"], ["y"]),
    ]
    return whole(nodes, (1, 3, 5), two=np.asarray(2), c=np.arange(15).reshape(1, 5, 3))


def summed(axes: list[int], keep: int) -> onnx.ModelProto:
    nodes = [node("ReduceSum", ["x", "axes"], ["s"], keepdims=keep), node("Add", ["s", "one"], ["y"])]
    return whole(nodes, (1, 5, 7), axes=np.asarray(axes), one=np.asarray(1))


MODELS = {
    "a matrix": moved((1, 3, 8), (0, 2, 1)),
    "a long matrix": moved((1, 40, 7), (0, 2, 1)),
    "a square of more than ten": moved((1, 13, 13), (0, 2, 1)),
    "three axes": moved((1, 2, 3, 4), (0, 3, 2, 1)),
    "truths": moved_truths(),
    "a sum": summed([2], 0),
    "a sum of several axes": summed([1, 2], 1),
}


@pytest.mark.parametrize("model", MODELS.values(), ids=[*MODELS])
def test_whole_numbers_are_moved_and_summed_exactly(model, tmp_path):
    graph = lower(model)
    shape = [each.dim_value for each in model.graph.input[0].type.tensor_type.shape.dim]
    top = 5 if "Greater" in {each.op_type for each in model.graph.node} else 2**24
    data = {"x": np.random.default_rng(1).integers(-top, top, (4, *shape[1:]))}
    content, path = to_bytes(graph), tmp_path / "net.tflite"
    path.write_bytes(content)
    for run in (by_litert, by_tflm):
        np.testing.assert_array_equal(run(content, data), by_onnx(model, data))
    assert not findings(path)


def test_truths_that_an_npu_repeats_stay_on_it():
    nodes = [
        node("Greater", ["x", "two"], ["t"]),
        node("Expand", ["t", "size"], ["u"]),
        node("Cast", ["u"], ["v"], to=TensorProto.INT64),
        node("Transpose", ["v"], ["y"], perm=[1, 0, 2]),
    ]
    graph = lower(whole(nodes, (1, 1, 20), two=np.asarray(2), size=np.asarray([1, 20, 20])))
    assert "BROADCAST_TO" in graph.counts()
    assert {each.kind for each in for_ethos_u(graph, lambda *_: True, 3).operators} <= {*table("EthosU85")}
