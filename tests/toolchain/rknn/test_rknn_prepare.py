"""What is done to a graph before the toolkit reads it, the rules, and the toolkit's words."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from anynpu.graph.opset import opset_of
from anynpu.source.onnx_file import read
from anynpu.targets.rknn.prepare import findings, last_error, prepared, refusals
from anynpu.targets.rknn.receipt import read_receipt
from anynpu.testing import models

LOG = """\
D RKNN: [08:51:05.402] Network Layer Information Table
D RKNN: [08:51:05.402] ID OpType DataType Target InputShape OutputShape Cycles(DDR/NPU/Total) RW(KB) FullName
D RKNN: [08:51:05.402] 0 InputOperator INT8 CPU \\ (1,3,32,32) 0/0/0 0 InputOperator:x
D RKNN: [08:51:05.402] 1 Conv INT8 NPU (1,64,8,8),(1,64,7,7),(64) (1,64,2,2) 339/784/784 7 Conv:/pool/a b
D RKNN: [08:51:05.402] 2 ConvAdd INT8 NPU (1,16,32,32),(16,16,3,3),(16),... (1,16,32,32) 2187/9216/9216 34 Conv:c
D RKNN: [08:51:05.402] 3 exMatMul FLOAT16 NPU (1,12,128,32),(1,12,32,128) (1,12,128,128) 5/6/6 1 exMatMul:m
D RKNN: [08:51:05.402] 4 exSDPAttention FLOAT16 NPU (1,12,32,32),(1,12,32,32),... (1,12,32,32) 1/1/0 1 exSDPAttention:a
D RKNN: [08:51:05.402] 5 Reshape INT8 CPU (1,10,1,1),(2) (1,10) 0/0/0 0 Reshape:r
D RKNN: [08:51:05.402] 6 OutputOperator INT8 CPU (1,10) \\ 0/0/0 0 OutputOperator:logits
D RKNN: [08:51:05.404] 1 ConvClip image INT8 NC1HWC2 (1,3,32,32) (1,1,32,32,3) | 0x00000000 0x00000c00 0x00000c00
D RKNN: [08:51:05.412] Total Internal Memory Size: 1.5MB
D RKNN: [08:51:05.412] Total Weight Memory Size: 87.25KB
"""


def test_the_table_is_read():
    found = read_receipt(LOG)
    assert [(x.name, x.target) for x in found.operators] == [
        ("/pool/a b", "NPU"),
        ("c", "NPU"),
        ("m", "NPU"),
        ("a", "NPU"),
        ("r", "CPU"),
    ]
    assert [x.macs for x in found.operators] == [64 * 4 * 49, 16 * 1024 * 16 * 9, 12 * 128 * 128 * 32, None, 0]
    assert (found.cycles, found.internal_bytes, found.weight_bytes) == (784 + 9216 + 6, 3 * 2**19, 89344)
    assert found.outputs() == ((1, 10),)


def test_a_log_without_a_table_gives_nothing():
    found = read_receipt("I rknn building ...\n")
    assert (found.operators, found.cycles, found.internal_bytes) == ((), None, None)


def newer(opset: int) -> onnx.ModelProto:
    model = models.conv_net()
    model.opset_import[0].version = opset
    model.ir_version = 11
    return model


def test_a_newer_opset_is_lowered_and_computes_the_same(tmp_path):
    import onnxruntime

    model = newer(21)
    low, notes = prepared(model)
    assert opset_of(low) == 19 and low.ir_version <= 10 and notes == ("opset 21 lowered to 19",)
    image = np.random.default_rng(0).normal(0, 1, (1, 3, 8, 8)).astype(np.float32)
    model.ir_version = 10
    both = [onnxruntime.InferenceSession(m.SerializeToString()).run(None, {"image": image})[0] for m in (model, low)]
    np.testing.assert_array_equal(*both)


def test_an_older_one_is_left_alone():
    model = models.conv_net()
    same, notes = prepared(model)
    assert same is model and not notes


def one_node(node: onnx.NodeProto, shape: list[int | str], constants: dict[str, np.ndarray] | None = None):
    stored = [numpy_helper.from_array(value, name) for name, value in (constants or {}).items()]
    given = helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)
    graph = helper.make_graph(
        [node], "g", [given], [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)], stored
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17), helper.make_opsetid("own", 1)])


@pytest.mark.parametrize(
    ("node", "shape", "rule"),
    [
        (helper.make_node("Relu", ["x"], ["y"]), [2, 3], "batch_is_one"),
        (helper.make_node("Relu", ["x"], ["y"]), ["n", 3], "shapes_are_static"),
        (helper.make_node("NonZero", ["x"], ["y"]), [1, 3], "sizes_are_known"),
        (helper.make_node("Odd", ["x"], ["y"], domain="own"), [1, 3], "onnx_own_operators"),
        (helper.make_node("Resize", ["x", "", "s"], ["y"], mode="cubic"), [1, 1, 4, 4], "no_cubic_resize"),
    ],
)
def test_each_rule_finds_its_case(node, shape, rule):
    found = findings(one_node(node, shape, {"s": np.array([1, 1, 2, 2], np.float32)}))
    assert [f.rule for f in found] == [rule] and found[0].message


def test_a_sound_model_has_no_findings(tmp_path):
    assert findings(read(models.save(models.conv_net(), tmp_path / "net.onnx"))) == ()


def test_the_toolkits_own_words_are_understood():
    said = "\x1b[1;31mE\x1b[0m \x1b[1;31mload_onnx: Unsupport onnx opset 21, need <= 19!\x1b[0m\nE rknn version: 2\n"
    assert "opset 21" in refusals(said)[0].message
    assert last_error(said) == "load_onnx: Unsupport onnx opset 21, need <= 19!"
    crashed = "E RKNN: [08:54:32.624] Meet unsupported conv, input tensor name: image input type: 5\n"
    assert refusals(crashed)[0].where == "conv"
    assert refusals("I all is well\n") == () and last_error("I all is well\n") == ""
