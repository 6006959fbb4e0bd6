"""Models that ignore their input, and models that overflow."""

from __future__ import annotations

import numpy as np
import pytest
from graph_nets import parse, weights

from anynpu.errors import ConfigError, Unsupported
from anynpu.graph.degenerate import input_dependence
from anynpu.graph.run import random_feeds


def rules(model, samples=None):
    return [(finding.rule, finding.where) for finding in input_dependence(model, samples)]


DENSE = "g (float[1,8] x) => (float[1,4] y) { a = MatMul(x, w)\n y = %s }"


def test_healthy_network():
    assert rules(parse(DENSE % "Relu(a)", w=weights(8, 4))) == []
    assert rules(parse(DENSE % "Softmax(a)", w=weights(8, 4) * 100)) == []


def test_zero_weights():
    assert rules(parse(DENSE % "Relu(a)", w=np.zeros((8, 4), np.float32))) == [("degenerate-output", "y")]


def test_large_bias_drowns_the_input():
    model = parse(DENSE % "Add(a, b)", w=weights(8, 4) * 1e-12, b=np.full(4, 1e3, np.float32))
    assert rules(model) == [("degenerate-output", "y")]


def test_dead_activation():
    model = parse(
        "g (float[1,8] x) => (float[1,8] y) { q = Mul(x, x)\n n = Neg(q)\n r = Relu(n)\n y = Add(r, b) }", b=weights(8)
    )
    assert rules(model) == [("degenerate-output", "y")]


def test_output_without_a_path():
    model = parse("g (float[1,8] x) => (float[1,8] y, float[8] z) { y = Relu(x)\n z = Exp(b) }", b=weights(8))
    findings = input_dependence(model)
    assert [(f.rule, f.where) for f in findings] == [("degenerate-output", "z")]
    assert "no input reaches" in findings[0].message


def test_shape_is_no_dependence():
    model = parse("g (float[1,8] x) => (float[2] y) { s = Shape(x)\n y = Cast<to=1>(s) }")
    assert "no input reaches" in input_dependence(model)[0].message


def test_class_numbers_may_be_equal():
    model = parse(
        "g (float[1,8] x) => (int64[1,1] y) { s = Add(x, b)\n y = ArgMax<axis=1>(s) }", b=np.eye(1, 8).astype("f") * 1e9
    )
    assert rules(model) == []


def test_non_finite():
    model = parse("g (float[1,8] x) => (float[1,8] y) { n = Log(x)\n y = Add(n, x) }")
    assert ("non-finite-output", "y") in rules(model)


@pytest.mark.parametrize("stack", [(6, 8), (6, 1, 8)])
def test_given_samples(stack):
    model = parse(DENSE % "Relu(a)", w=weights(8, 4))
    samples = np.abs(weights(*stack))
    assert rules(model, {"x": samples}) == []
    negative = parse(DENSE % "Relu(a)", w=-np.abs(weights(8, 4)))
    assert rules(negative, {"x": samples}) == [("degenerate-output", "y")]
    assert "6 differing samples" in input_dependence(negative, {"x": samples})[0].message


def test_equal_samples_prove_nothing():
    model = parse(DENSE % "Relu(a)", w=weights(8, 4))
    assert rules(model, {"x": np.ones((9, 8), np.float32)}) == []


def test_wrong_samples():
    model = parse(DENSE % "Relu(a)", w=weights(8, 4))
    with pytest.raises(ConfigError, match="the model takes x"):
        input_dependence(model, {"z": np.ones((4, 8))})
    with pytest.raises(ConfigError, match=r"has shape \[9\]"):
        input_dependence(model, {"x": np.ones((4, 9))})


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int32", "bool", "float16"])
def test_input_types(dtype):
    kind = {"int8": "int8", "uint8": "uint8", "int32": "int32", "bool": "bool", "float16": "float16"}[dtype]
    model = parse(f"g ({kind}[1,64] x) => (float[1,64] y) {{ c = Cast<to=1>(x)\n y = Add(c, b) }}", b=weights(64))
    assert rules(model) == []


def test_an_input_of_a_type_that_numpy_has_no_numbers_of():
    with pytest.raises(Unsupported, match="input 'x' has type int4"):
        random_feeds(parse("g (int4[1,8] x) => (float[1,8] y) { y = Cast <to = 1> (x) }"), 0)
