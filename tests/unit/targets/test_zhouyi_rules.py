"""What `check` finds before cixbuild does, and what its options refuse."""

from __future__ import annotations

import pytest
from onnx import TensorProto, helper

from anynpu.errors import ConfigError, Unsupported
from anynpu.targets.zhouyi import cfg
from anynpu.targets.zhouyi.made import pair
from anynpu.targets.zhouyi.options import ZhouyiOptions, check_target
from anynpu.targets.zhouyi.rules import RULES, findings
from anynpu.tensors import TensorSpec


def model(nodes, inputs, outputs):
    def values(part):
        return [helper.make_tensor_value_info(name, kind, shape) for name, (kind, shape) in part.items()]

    graph = helper.make_graph(nodes, "net", values(inputs), values(outputs))
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.example", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


REAL = (TensorProto.FLOAT, (1, 4))


@pytest.mark.parametrize(
    ("kind", "count", "rule"),
    [("Equal", 2, "no_comparison"), ("Less", 2, "no_comparison"), ("Shape", 1, "no_shape"), ("NonZero", 1, "no_shape")],
)
def test_an_operator_that_is_refused_is_found_by_its_rule(kind, count, rule):
    node = helper.make_node(kind, ["x", "z"][:count], ["y"], "odd")
    net = model([node], {"x": REAL, "z": REAL}, {"y": (TensorProto.INT64, None)})
    found = [f for f in findings(net) if f.rule == rule]
    assert [f.where for f in found] == ["odd"]
    assert found[0].message.startswith(f"{kind}: ")


def test_where_is_found_and_plain_networks_are_not():
    node = helper.make_node("Where", ["c", "x", "x"], ["y"], "choose")
    net = model([node], {"c": (TensorProto.BOOL, (1, 4)), "x": REAL}, {"y": REAL})
    assert {f.rule for f in findings(net)} == {"no_where", "border_type"}
    plain = [helper.make_node(kind, [a], [b], kind) for kind, a, b in (("Relu", "x", "h"), ("Softmax", "h", "y"))]
    assert findings(model(plain, {"x": REAL}, {"y": REAL})) == ()


@pytest.mark.parametrize(
    ("shape", "rule"),
    [(("n", 4), "static_shapes"), ((None, 4), "static_shapes"), ((2, 4), "batch_is_one"), ((), "batch_is_one")],
)
def test_shapes_must_be_fixed_and_batches_one(shape, rule):
    net = model([helper.make_node("Relu", ["x"], ["y"], "r")], {"x": (TensorProto.FLOAT, shape)}, {"y": REAL})
    del net.graph.output[0].type.tensor_type.shape.dim[:]
    net.graph.output[0].type.tensor_type.ClearField("shape")
    assert rule in {f.rule for f in findings(net)}


def test_a_foreign_operator_and_a_quantised_model_are_found():
    node = helper.make_node("FusedThing", ["x"], ["y"], "fused", domain="com.example")
    assert {f.rule for f in findings(model([node], {"x": REAL}, {"y": REAL}))} >= {"standard_operator"}
    node = helper.make_node("DequantizeLinear", ["x", "s"], ["y"], "dq")
    inputs = {"x": (TensorProto.INT8, (1, 4)), "s": (TensorProto.FLOAT, (1,))}
    assert "is_float" in {f.rule for f in findings(model([node], inputs, {"y": REAL}))}


def test_every_rule_is_a_sentence():
    for rule in RULES.values():
        assert rule.__doc__
        assert rule.__doc__.endswith(".")


def test_target_names_are_explained():
    known = ("X2_1204MP3", "X2_1204")
    check_target("X2_1204", known)
    with pytest.raises(ConfigError, match="Z3 names") as refused:
        check_target("Z3_1204", known)
    assert "X2_1204MP3" in refused.value.hint
    with pytest.raises(ConfigError, match="no such target"):
        check_target("Z3"[::-1], known)


@pytest.mark.parametrize("pattern", ["a{2}", "a<b", "a[0-9]", "a:b", "a b", "a;b", "50%", "a&b", "(", "a\nb"])
def test_a_regex_that_the_cfg_would_misread_is_refused(pattern):
    with pytest.raises(ConfigError):
        ZhouyiOptions(float_nodes=pattern)
    with pytest.raises(ConfigError):
        ZhouyiOptions(wide_nodes=pattern)


def test_bits_follow_the_nodes():
    assert cfg.precision(ZhouyiOptions(wide_nodes="/head.*", float_nodes=".*Gather.*", float_type="float32")) == {
        "weight_bits": "8 & <{/head.*}:16>",
        "activation_bits": "8 & <{/head.*}:16>",
        "bias_bits": "32 & <{/head.*}:48>",
        "trigger_float_op": "disable & <{.*Gather.*}:float32_preferred!>",
    }
    with pytest.raises(ConfigError, match="below zero"):
        ZhouyiOptions(mask_value=3.0)
    with pytest.raises(ConfigError, match="a second or more"):
        ZhouyiOptions(time_limit_s=0)


@pytest.mark.parametrize("name", ["a,b", "a b", "a%b", "x[0]", "a=b", "#a"])
def test_a_name_that_the_cfg_cannot_hold_is_unsupported(name):
    with pytest.raises(Unsupported, match="names of these inputs"):
        cfg.text("net", [TensorSpec(name, (1, 4))], "calibration.npy", ZhouyiOptions())


def test_model_names_are_plain():
    assert cfg.model_name("../a b/ü") == "a_b"
    assert cfg.model_name("") == "model"


class Tensor:
    def __init__(self, name):
        self.name = name


def test_tensors_pair_by_name_and_else_by_the_parsers_order():
    asked = [TensorSpec("zebra", (1,)), TensorSpec("apple", (1,))]
    assert [t.name for t in pair("input", [Tensor("apple_0"), Tensor("zebra")], asked)] == ["zebra", "apple_0"]
    assert [t.name for t in pair("input", [Tensor("first"), Tensor("second")], asked)] == ["second", "first"]
    assert [t.name for t in pair("output", [Tensor("first"), Tensor("second")], asked)] == ["first", "second"]
