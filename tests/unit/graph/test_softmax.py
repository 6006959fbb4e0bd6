"""A softmax that is written out becomes one node where it is one, and ONNX Runtime gives the same."""

from __future__ import annotations

import numpy as np
import pytest
from graph_nets import parse, run, weights

from anynpu.graph import passes
from anynpu.graph.shapes import infer
from anynpu.graph.softmax import SOFTMAX

INTS = {"last": np.array([-1]), "middle": np.array([1]), "kept": np.array([2, 4, 1]), "whole": np.array([2, 4, 3]),
        "both": np.array([1, 2])}  # fmt: skip
SHIFTED = "m = ReduceMax<axes=[-1]>(x) z = Sub(x, m) e = Exp(z) "
WRITTEN = {
    "plain": ("e = Exp(x) s = ReduceSum(e, last) y = Div(e, s)", "Softmax", 2),
    "shifted": (SHIFTED + "s = ReduceSum(e, last) y = Div(e, s)", "Softmax", 2),
    "by a stored number": ("z = Sub(x, five) e = Exp(z) s = ReduceSum(e, last) y = Div(e, s)", "Softmax", 2),
    "of jax": (
        "m = ReduceMax<axes=[-1], keepdims=0>(x) n = Max(m, lowest) k = Reshape(n, kept) z = Sub(x, k) e = Exp(z) "
        "s = ReduceSum<keepdims=0>(e, last) t = Reshape(s, kept) y = Div(e, t)",
        "Softmax",
        2,
    ),
    "repeated": (SHIFTED + "s = ReduceSum(e, last) t = Expand(s, whole) y = Div(e, t)", "Softmax", 2),
    "by an inverse": (SHIFTED + "s = ReduceSum(e, last) i = Reciprocal(s) y = Mul(i, e)", "Softmax", 2),
    "inside": ("e = Exp(x) s = ReduceSum(e, middle) y = Div(e, s)", "Softmax", 1),
    "logarithm": (SHIFTED + "s = ReduceSum(e, last) l = Log(s) y = Sub(z, l)", "LogSoftmax", 2),
}
OTHERS = {
    "sum of others": "e = Exp(x) r = Relu(e) s = ReduceSum(r, last) y = Div(e, s)",
    "two axes": "e = Exp(x) s = ReduceSum(e, both) y = Div(e, s)",
    "all axes": "e = Exp(x) s = ReduceSum(e) y = Div(e, s)",
    "upside down": "e = Exp(x) s = ReduceSum(e, last) y = Div(s, e)",
    "scores in the place of exponentials": "e = Exp(x) s = ReduceSum(e, last) y = Div(x, s)",
    "twice inverted": "e = Exp(x) s = ReduceSum(e, last) i = Reciprocal(s) j = Reciprocal(i) y = Mul(j, e)",
    "plus the logarithm": "e = Exp(x) s = ReduceSum(e, last) l = Log(s) y = Add(x, l)",
}


def net(body, opset=13):
    stored = {**INTS, "five": np.float32(5), "lowest": np.float32(-1e30)}
    text = f"g (float[2,4,3] x) => (float[2,4,3] y) {{ {body} }}"
    return infer(parse(text, opset, **{name: each for name, each in stored.items() if f" {name})" in body}))


@pytest.mark.parametrize("name", WRITTEN)
def test_a_written_softmax_is_one_node(name):
    body, kind, axis = WRITTEN[name]
    model = net(body)
    changed, (effect,) = passes.run((SOFTMAX,), model)
    last = changed.graph.node[-1]
    assert effect.changed == 1 and last.op_type == kind and last.attribute[0].i == axis
    assert last.input[0] == "x"  # no shift is left before it
    x = 3 * weights(2, 4, 3)
    np.testing.assert_allclose(run(changed, x)[0], run(model, x)[0], rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("name", OTHERS)
def test_what_is_none_stays(name):
    model = net(OTHERS[name])
    assert passes.run((SOFTMAX,), model)[0] is model


def test_a_shift_of_each_score_stays():
    model = net("w = Sigmoid(x) z = Sub(x, w) e = Exp(z) s = ReduceSum(e, last) y = Div(e, s)")
    changed, _ = passes.run((SOFTMAX,), model)
    assert changed.graph.node[-1].input[0] == "z"


@pytest.mark.parametrize(("axis", "changes"), [("-1", 1), ("1", 0)])
def test_before_opset_13_a_softmax_is_over_all_axes_behind_its_own(axis, changes):
    model = net(f"e = Exp(x) s = ReduceSum<axes=[{axis}]>(e) y = Div(e, s)", opset=11)
    changed, _ = passes.run((SOFTMAX,), model)
    assert sum(node.op_type == "Softmax" for node in changed.graph.node) == changes
    np.testing.assert_allclose(run(changed, weights(2, 4, 3))[0], run(model, weights(2, 4, 3))[0], rtol=1e-5)
