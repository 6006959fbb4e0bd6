"""Means written as sums, and variances written as differences: ONNX Runtime gives the same, and others stay."""

from __future__ import annotations

import numpy as np
import pytest
from graph_nets import parse, run, weights

from anynpu.graph import passes
from anynpu.graph.means import MEANS, VARIANCES
from anynpu.graph.shapes import infer
from anynpu.graph.simplify import simplify

STORED = {
    "last": np.array([-1]),
    "two": np.array([1, 2]),
    "fifth": np.float32(0.2),
    "five": np.float32(5),
    "twenty": np.float32(20),
    "square": np.float32(2),
    "cube": np.float32(3),
    "zero": np.float32(0),
    "one": np.float32(1),
    "small": np.float32(1e-6),
    "kept": np.array([2, 4, 1]),
}


def net(body, opset=17, result="float[A,B,C] y"):
    read = {name: each for name, each in STORED.items() if f" {name})" in body or f"({name}," in body}
    return infer(parse(f"g (float[2,4,5] x) => ({result}) {{ {body} }}", opset, **read))


def close(changed, model):
    x = weights(2, 4, 5) + 3
    np.testing.assert_allclose(run(changed, x)[0], run(model, x)[0], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("opset", [13, 17, 18])
@pytest.mark.parametrize(
    "body",
    [
        "s = ReduceSum(x, last) y = Mul(s, fifth)",
        "s = ReduceSum(x, last) y = Mul(fifth, s)",
        "s = ReduceSum(x, last) y = Div(s, five)",
        "s = ReduceSum(x, two) y = Div(s, twenty)",
    ],
)
def test_a_sum_over_its_number_is_a_mean(body, opset):
    model = net(body, opset)
    changed, (effect,) = passes.run((MEANS,), model)
    assert effect.changed == 1 and changed.graph.node[-1].op_type == "ReduceMean"
    close(changed, model)


@pytest.mark.parametrize(
    "body",
    [
        "s = ReduceSum(x, last) y = Mul(s, five)",
        "s = ReduceSum(x, last) y = Div(five, s)",
        "s = ReduceSum(x, two) y = Div(s, five)",
        "s = ReduceSum(x, last) y = Mul(s, s)",
        "s = ReduceMax<axes=[-1]>(x) y = Div(s, five)",
    ],
)
def test_another_factor_stays(body):
    model = net(body)
    assert passes.run((MEANS,), model)[0] is model


SQUARES = "q = Mul(x, x) m = ReduceMean<axes=[-1]>(x) p = ReduceMean<axes=[-1]>(q) t = Mul(m, m) "


@pytest.mark.parametrize("opset", [13, 17, 18])
@pytest.mark.parametrize(
    ("body", "bounds"),
    [
        (SQUARES + "y = Sub(p, t)", 0),
        (SQUARES.replace("Mul(x, x)", "Pow(x, square)") + "y = Sub(p, t)", 0),
        (SQUARES + "v = Sub(p, t) w = Max(zero, v) y = Add(w, small)", 0),
        (SQUARES + "v = Sub(p, t) w = Max(one, v) y = Add(w, small)", 1),
        (SQUARES + "v = Sub(p, t) y = Max(zero, v)", 1),
    ],
)
def test_a_variance_by_squares_is_one_by_differences(body, bounds, opset):
    model = net(body.replace("<axes=[-1]>(x)", "(x, last)").replace("<axes=[-1]>(q)", "(q, last)"), opset) \
        if opset >= 18 else net(body, opset)  # fmt: skip
    changed, (effect,) = passes.run((VARIANCES,), model)
    kinds = [node.op_type for node in changed.graph.node]
    assert effect.changed == 1 and kinds.count("Max") == bounds
    squared = [node for node in changed.graph.node if node.output[0].endswith("/squared")]
    assert [node.op_type for node in squared] == ["Mul"]
    close(changed, model)


@pytest.mark.parametrize(
    "body",
    [
        SQUARES + "y = Sub(t, p)",
        SQUARES.replace("Mul(x, x)", "Pow(x, cube)") + "y = Sub(p, t)",
        SQUARES.replace("Mul(x, x)", "Mul(x, r)").replace("q =", "r = Relu(x) q =") + "y = Sub(p, t)",
        SQUARES.replace("ReduceMean<axes=[-1]>(q)", "ReduceMean<axes=[1]>(q)") + "y = Sub(p, t)",
    ],
)
def test_another_difference_stays(body):
    model = net(body)
    assert passes.run((VARIANCES,), model)[0] is model


def test_a_normalisation_of_flax_becomes_the_common_one():
    """Means without their axis, a bound of zero and shapes between: all of it goes."""
    body = (
        "s = ReduceSum<keepdims=0>(x, last) q = Mul(x, x) u = ReduceSum<keepdims=0>(q, last) m = Mul(s, fifth) "
        "p = Mul(u, fifth) t = Mul(m, m) v = Sub(p, t) w = Max(zero, v) a = Reshape(m, kept) b = Reshape(w, kept) "
        "e = Add(b, small) r = Sqrt(e) i = Reciprocal(r) d = Sub(x, a) y = Mul(d, i)"
    )
    model = net(body)
    simpler, _ = simplify(model)
    kinds = ["ReduceMean", "Sub", "Mul", "ReduceMean", "Add", "Sqrt", "Reciprocal", "Mul"]
    assert [node.op_type for node in simpler.graph.node] == kinds
    close(simpler, model)
