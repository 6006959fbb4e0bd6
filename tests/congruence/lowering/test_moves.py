"""Moves of axes are joined across reshapes, and LiteRT gives what ONNX Runtime does."""

from __future__ import annotations

import numpy as np
import pytest
from lowered_nets import agrees, net
from onnx.helper import make_node

from anynpu.lowering.lower import lower

pytest.importorskip("ai_edge_litert")


def built(nodes, size, **constants):
    """Returns a net of nodes (operator, inputs, output, settings) over one row of numbers."""
    made = [make_node(kind, inputs, [output], **dict(*settings)) for kind, inputs, output, *settings in nodes]
    return net(made, {"x": [1, size]}, {name: np.asarray(value) for name, value in constants.items()})


def moved(shape, first, middle, second):
    size = int(np.prod(shape))
    nodes = [
        ("Reshape", ["x", "shape"], "t"),
        ("Transpose", ["t"], "a", {"perm": list(first)}),
        ("Reshape", ["a", "middle"], "b"),
        ("Transpose", ["b"], "c", {"perm": list(second)}),
        ("Reshape", ["c", "whole"], "y"),
    ]
    return built(nodes, size, shape=shape, middle=middle, whole=[1, size])


def count(model, kind):
    return lower(model).counts().get(kind, 0)


CASES = {
    "an axis is split": ((1, 24, 20), (0, 2, 1), (1, 4, 5, 24), (0, 1, 3, 2), 1),
    "axes are joined": ((1, 4, 24, 5), (0, 1, 3, 2), (20, 24), (1, 0), 1),
    "back where it was": ((1, 24, 20), (0, 2, 1), (20, 24), (1, 0), 0),
    "split and back": ((2, 12, 6), (0, 2, 1), (2, 6, 3, 4), (0, 2, 3, 1), 0),
    "between others": ((2, 3, 4, 5), (0, 2, 3, 1), (2, 20, 3), (1, 0, 2), 1),
    "across borders": ((4, 6), (1, 0), (8, 3), (1, 0), 2),
    "ones everywhere": ((1, 5, 1, 7), (0, 3, 2, 1), (7, 1, 1, 5), (3, 1, 0, 2), 0),
}


@pytest.mark.parametrize("name", CASES)
def test_transposes_around_a_reshape_are_one_or_none(name):
    *case, left = CASES[name]
    model = moved(*case)
    assert count(model, "TRANSPOSE") == left
    agrees(model)


def test_random_moves_agree():
    random = np.random.default_rng(7)
    for _ in range(40):
        factors = [int(size) for size in random.integers(1, 4, 5)]
        cuts = [sorted(random.choice(np.arange(1, 5), 2, replace=False)) for _ in range(2)]
        before, middle = ([int(np.prod(part)) for part in np.split(factors, cut)] for cut in cuts)
        first, second = random.permutation(3), random.permutation(3)
        source = [before[list(first).index(axis)] for axis in range(3)]
        model = moved(source, first.tolist(), middle, second.tolist())
        assert count(model, "TRANSPOSE") <= 1
        agrees(model)


def test_a_transpose_of_axes_of_one_is_a_reshape():
    turned = ("Transpose", ["s"], "t", {"perm": [1, 0, 2]})
    nodes = [("Reshape", ["x", "shape"], "s"), turned, ("Softmax", ["t"], "u"), ("Reshape", ["u", "whole"], "y")]
    model = built(nodes, 30, shape=[1, 6, 5], whole=[1, 30])
    assert count(model, "TRANSPOSE") == 0
    agrees(model)


@pytest.mark.parametrize(
    ("middle", "between"),
    [
        ([("Tanh", ["r"], "t")], 0),
        ([("Sigmoid", ["r"], "s"), ("Mul", ["r", "s"], "t")], 0),
        ([("Add", ["r", "half"], "t")], 0),
        ([("Add", ["r", "row"], "t")], 1),
        ([("Softmax", ["r"], "t", {"axis": -1})], 1),
    ],
    ids=["a function", "a product of functions", "a number", "a row", "values that depend on others"],
)
def test_a_reshape_before_functions_of_single_values_goes(middle, between):
    """Between two dense layers on rows no RESHAPE is left but where an operator sees the shape."""
    stored = {"half": np.float32(0.5), "row": np.ones((2, 1, 6), np.float32)}
    stored = {name: value for name, value in stored.items() if any(name in node[1] for node in middle)}
    stored |= {"w": np.eye(8, 6, dtype=np.float32), "v": np.eye(6, 4, dtype=np.float32), "whole": [1, 40]}
    nodes = [("Reshape", ["x", "begin"], "b"), ("MatMul", ["b", "w"], "m"), ("Reshape", ["m", "apart"], "r"), *middle]
    nodes += [("Reshape", ["t", "rows"], "u"), ("MatMul", ["u", "v"], "z"), ("Reshape", ["z", "whole"], "y")]
    model = built(nodes, 80, begin=[10, 8], apart=[2, 5, 6], rows=[10, 6], **stored)
    assert count(model, "RESHAPE") == 2 + 2 * between
    agrees(model)
