"""Rewrites for cixbuild: what they change, that results stay, and what they leave alone."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from anynpu.graph.run import Session, random_feeds
from anynpu.targets.zhouyi.options import ZhouyiOptions
from anynpu.targets.zhouyi.rewrite import rewritten

DRAW = np.random.default_rng(3)
LENGTH, WIDTH = 6, 8


def model(nodes, weights, inputs, outputs):
    def values(part):
        return [
            helper.make_tensor_value_info(name, TensorProto.FLOAT if kind == "f" else TensorProto.INT64, shape)
            for name, (kind, shape) in part.items()
        ]

    stored = [numpy_helper.from_array(np.asarray(array), name) for name, array in weights.items()]
    graph = helper.make_graph(nodes, "net", values(inputs), values(outputs), stored)
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.checker.check_model(made)
    return made


def attention(mask_nodes, masked, weights=None, inputs=None, after=()):
    """Scores of x with itself, masked as the test wants, through a Softmax and back to x."""
    # Scores of a trained model lie within ten or so of each other; wilder ones would show through a mask of -30.
    w = np.random.default_rng(3).normal(0, 0.2, (WIDTH, WIDTH)).astype(np.float32)
    nodes = [
        helper.make_node("MatMul", ["x", "wq"], ["q"], "query"),
        helper.make_node("Transpose", ["x"], ["xt"], "turn", perm=[0, 2, 1]),
        helper.make_node("MatMul", ["q", "xt"], ["scores"], "product"),
        *mask_nodes,
        *(after or [helper.make_node("Softmax", [masked], ["share"], "softmax", axis=-1)]),
        helper.make_node("MatMul", ["share", "x"], ["y"], "mix"),
    ]
    kind = ("f", (1, LENGTH, WIDTH))
    return model(nodes, {"wq": w, **(weights or {})}, {"x": kind, **(inputs or {})}, {"y": kind})


def kinds(graph):
    return [node.op_type for node in graph.graph.node]


def constants(graph):
    return {tensor.name: numpy_helper.to_array(tensor) for tensor in graph.graph.initializer}


def causal(low):
    return np.triu(np.full((LENGTH, LENGTH), low, np.float32), 1)


def padding(value):
    """(1 - mask) * -1e9 + scores, as BERT exports have it."""
    nodes = [
        helper.make_node("Cast", ["mask"], ["real"], "cast", to=TensorProto.FLOAT),
        helper.make_node("Sub", ["one", "real"], ["inverse"], "inverse"),
        helper.make_node("Mul", ["inverse", "low"], ["bias"], "bias"),
        helper.make_node("Add", ["scores", "bias"], ["masked"], "add"),
    ]
    weights = {"one": np.float32(1), "low": np.float32(value)}
    return attention(nodes, "masked", weights, {"mask": ("i", (1, 1, LENGTH))})


def padded_feeds():
    """Masks of ones and then zeros: no row is masked whole."""
    for keep in (1, 3, LENGTH):
        mask = (np.arange(LENGTH) < keep).astype(np.int64).reshape(1, 1, LENGTH)
        yield {"x": DRAW.normal(0, 1, (1, LENGTH, WIDTH)).astype(np.float32), "mask": mask}


def outputs_agree(before, after, feeds):
    for feed in feeds:
        for a, b in zip(Session(before).run(feed), Session(after).run(feed), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("low", [-1e4, -1e9, np.finfo(np.float32).min, -np.inf])
def test_a_constant_causal_mask_becomes_mild(low):
    net = attention([helper.make_node("Add", ["scores", "m"], ["masked"], "add")], "masked", {"m": causal(low)})
    made, notes, _ = rewritten(net, ZhouyiOptions())
    assert notes == ("constants of attention masks became -30: 1",)
    assert min(array.min() for array in constants(made).values()) == -30
    outputs_agree(net, made, [random_feeds(net, seed) for seed in range(3)])


@pytest.mark.parametrize("low", [-1e4, -1e9, float(np.finfo(np.float32).min)])
def test_a_mask_that_is_an_input_becomes_mild_without_sub(low):
    net = padding(low)
    feeds = list(padded_feeds())
    made, notes, _ = rewritten(net, ZhouyiOptions(mask_value=-40.0), feeds)
    assert len(notes) == 2
    assert "Sub" not in kinds(made)
    assert min(float(array.min()) for array in constants(made).values()) == -40
    outputs_agree(net, made, feeds)


def test_a_where_with_a_constant_condition_becomes_an_add():
    keep = np.tril(np.ones((1, LENGTH, LENGTH), bool))
    node = helper.make_node("Where", ["keep", "scores", "low"], ["masked"], "where")
    net = attention([node], "masked", {"keep": keep, "low": np.float32(-np.inf)})
    made, _, _ = rewritten(net, ZhouyiOptions())
    assert "Where" not in kinds(made)
    outputs_agree(net, made, [random_feeds(net, 5)])
    turned = helper.make_node("Where", ["keep", "low", "scores"], ["masked"], "where")
    net = attention([turned], "masked", {"keep": ~keep, "low": np.float32(-1e9)})
    made, _, _ = rewritten(net, ZhouyiOptions())
    assert "Where" not in kinds(made)
    outputs_agree(net, made, [random_feeds(net, 5)])


def test_a_mask_that_would_show_is_left_alone_and_said():
    after = [
        helper.make_node("Mul", ["masked", "tenth"], ["scaled"], "scale"),
        helper.make_node("Softmax", ["scaled"], ["share"], "softmax", axis=-1),
    ]
    add = helper.make_node("Add", ["scores", "m"], ["masked"], "add")
    net = attention([add], "masked", {"m": causal(-1e9), "tenth": np.float32(0.1)}, after=after)
    made, notes, _ = rewritten(net, ZhouyiOptions())
    assert "left alone" in notes[0]
    assert made is net


def test_very_negative_numbers_that_meet_no_softmax_are_no_mask():
    node = helper.make_node("Add", ["x", "low"], ["y"], "add")
    net = model([node], {"low": np.float32(-1e9)}, {"x": ("f", (1, 4))}, {"y": ("f", (1, 4))})
    assert rewritten(net, ZhouyiOptions())[:2] == (net, ())
    both = [helper.make_node("Add", ["scores", "m"], ["masked"], "add")]
    net = attention(both, "masked", {"m": causal(-1e9)})
    net.graph.output.append(helper.make_tensor_value_info("masked", TensorProto.FLOAT, (1, LENGTH, LENGTH)))
    assert rewritten(net, ZhouyiOptions())[1] == ()


def test_mask_value_zero_leaves_masks_alone():
    net = attention([helper.make_node("Add", ["scores", "m"], ["masked"], "add")], "masked", {"m": causal(-1e9)})
    assert rewritten(net, ZhouyiOptions(mask_value=0.0))[:2] == (net, ())


@pytest.mark.parametrize("sides", [("x", "c"), ("c", "x"), ("x", "x2")])
def test_every_sub_becomes_an_add(sides):
    node = helper.make_node("Sub", list(sides), ["y"], "minus")
    kind = ("f", (1, 4))
    inputs = {name: kind for name in sides if name != "c"}
    weights = {"c": DRAW.normal(0, 1, 4).astype(np.float32)} if "c" in sides else {}
    net = model([node], weights, inputs, {"y": kind})
    made, notes, _ = rewritten(net, ZhouyiOptions())
    assert notes == ("Sub became Add of a negative: 1",)
    assert set(kinds(made)) <= {"Add", "Mul"}
    outputs_agree(net, made, [random_feeds(net, 1)])


@pytest.mark.parametrize("shape", [(1, WIDTH), (1, LENGTH, WIDTH), (2, LENGTH, WIDTH)])
def test_a_product_with_weights_becomes_a_convolution_when_asked(shape):
    weights = {"w": DRAW.normal(0, 1, (WIDTH, 5)).astype(np.float32)}
    node = helper.make_node("MatMul", ["x", "w"], ["y"], "dense")
    net = model([node], weights, {"x": ("f", shape)}, {"y": ("f", (*shape[:-1], 5))})
    assert rewritten(net, ZhouyiOptions())[1] == ()
    made, notes, _ = rewritten(net, ZhouyiOptions(matmul="convolution"))
    assert notes == ("products with constant weights became 1x1 Conv: 1",)
    assert "MatMul" not in kinds(made)
    assert "Conv" in kinds(made)
    onnx.checker.check_model(made, full_check=True)
    outputs_agree(net, made, [random_feeds(net, 1)])


@pytest.mark.parametrize("given", [{}, {"transB": 1, "alpha": 0.5, "beta": 2.0}, {"transA": 1}])
@pytest.mark.parametrize("bias", [None, (5,), (1, 5), (1,), (WIDTH, 5)])
def test_gemm_becomes_a_convolution_where_its_bias_is_one_a_column(given, bias):
    shape = (5, WIDTH) if given.get("transB") else (WIDTH, 5)
    weights = {"w": DRAW.normal(0, 1, shape).astype(np.float32)}
    if bias:
        weights["b"] = DRAW.normal(0, 1, bias).astype(np.float32)
    node = helper.make_node("Gemm", ["x", "w", *(["b"] if bias else [])], ["y"], "dense", **given)
    net = model([node], weights, {"x": ("f", (WIDTH, WIDTH))}, {"y": ("f", (WIDTH, 5))})
    made, _, _ = rewritten(net, ZhouyiOptions(matmul="convolution"))
    kept = "transA" in given or bias == (WIDTH, 5)
    assert ("Gemm" in kinds(made)) == kept
    assert ("Conv" in kinds(made)) != kept
    outputs_agree(net, made, [random_feeds(net, 1)])


def test_products_of_two_activations_stay():
    net = attention([], "scores")
    made, _, _ = rewritten(net, ZhouyiOptions(matmul="convolution"))
    assert kinds(made).count("MatMul") == 2
    outputs_agree(net, made, [random_feeds(net, 1)])


def test_the_model_itself_is_not_changed():
    net = padding(-1e9)
    before = net.SerializeToString()
    rewritten(net, ZhouyiOptions(matmul="convolution"), list(padded_feeds()))
    assert net.SerializeToString() == before
