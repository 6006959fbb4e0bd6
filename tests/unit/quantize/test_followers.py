"""Ranges by the error behind the function that follows."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from anynpu.quantize.calibration import Dataset
from anynpu.quantize.followers import Followed, Moved, Pointwise, Rows
from anynpu.quantize.functions import followers, functions
from anynpu.quantize.onnx_net import net_of
from anynpu.quantize.ranges import collect, quantization_for

RNG = np.random.default_rng(3)
GATES = {
    "silu": lambda x: x / (1 + np.exp(-x)),
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "hard swish": lambda x: x * np.clip(x / 6 + 0.5, 0, 1),
    "tanh": np.tanh,
    "relu": lambda x: np.maximum(x, 0.0),
}


def data(values):
    return Dataset({"x": np.asarray(values, np.float32)}, None, "test")


def behind(function, values, ranges):
    """Returns the error behind a function when its argument is stored in eight bits."""
    form = quantization_for(ranges, "int8", False)
    stored = form.dequantize(form.quantize(values, "int8"))
    return float(np.mean((function(values) - function(stored)) ** 2))


@pytest.mark.parametrize("name", GATES)
def test_a_function_that_flattens_has_less_error_behind_it(name):
    function = GATES[name]
    values = RNG.normal(-2, 6, (4, 4000)).astype(np.float64)
    found = collect(lambda s: {"y": s["x"]}, data(values), "auto", followers={"y": Pointwise(function)})["y"]
    plain = collect(lambda s: {"y": s["x"]}, data(values), "minmax")["y"]
    assert found.min > plain.min
    assert behind(function, values, found) < 0.6 * behind(function, values, plain)


@pytest.mark.parametrize("function", [lambda x: 2 * x, np.square, lambda x: np.where(x > 0, x, 0.5 * x)])
def test_a_function_that_flattens_nothing_keeps_every_value_within_a_step(function):
    values = RNG.normal(0, 4, (2, 5000))
    found = collect(lambda s: {"y": s["x"]}, data(values), "auto", followers={"y": Pointwise(function)})["y"]
    step = (values.max() - values.min()) / 255
    assert abs(found.min - values.min()) < step and abs(found.max - values.max()) < step


def test_a_mask_far_below_its_row_does_not_cost_the_scores_their_integers():
    scores = RNG.normal(0, 2, (3, 5, 8)).astype(np.float32)
    scores[..., 6:] = -1e4
    found = collect(lambda s: {"y": s["x"]}, data(scores), "auto", followers={"y": Rows(-1)})["y"]
    assert found.max == scores.max() and -20 < found.min < scores[..., :6].max(-1).min() - 11


def test_a_tensor_that_never_reaches_the_flat_part_is_stored_whole():
    followed = Followed(Pointwise(GATES["silu"]))
    followed.observe(np.asarray([-1.0, 0.5, 2.0]))
    assert followed.limits(-1.0, 2.0, 8) == (-1.0, 2.0)


def test_a_range_does_not_turn_values_to_the_side_of_a_comparison_that_was_not_measured():
    """Values of -2 are replaced; stored as -1 they would not be, and what is kept was measured from 0 to 2 only."""

    def bounded(x):
        return np.clip(x, -1, 1)

    def kept(x):
        return [np.where(x < -1, 0, x)]

    ranges = []
    for follower in (Pointwise(bounded), Pointwise(bounded, kept)):
        followed = Followed(follower)
        followed.observe(np.asarray([-2.0, 0.0, 2.0] * 8))
        ranges.append(followed.limits(-2.0, 2.0, 8))
    assert ranges[0] == (-1.0, 1.0) and ranges[1][0] < -1.0


def graph(*nodes, numbers=()):
    value = helper.make_tensor_value_info
    return helper.make_graph(
        nodes,
        "g",
        [value("x", TensorProto.FLOAT, [1, 8])],
        [value("z", TensorProto.FLOAT, [1, 8])],
        [numpy_helper.from_array(np.asarray(number, np.float32), name) for name, number in numbers],
    )


NODE = helper.make_node


def test_functions_are_found_however_they_are_written():
    half = [("half", 0.5), ("one", 1.0), ("root", np.sqrt(2))]
    written = graph(
        NODE("MatMul", ["x", "w"], ["y"]),
        NODE("Div", ["y", "root"], ["d"]),
        NODE("Erf", ["d"], ["e"]),
        NODE("Add", ["e", "one"], ["p"]),
        NODE("Mul", ["y", "p"], ["m"]),
        NODE("Mul", ["m", "half"], ["z"]),
        numbers=[*half, ("w", np.eye(8))],
    )
    found = followers(net_of(written))
    x = np.linspace(-6, 6, 25)
    from scipy.special import erf

    assert list(found) == ["y"]
    assert np.allclose(found["y"].function(x), 0.5 * x * (1 + erf(x / np.sqrt(2))))
    assert functions(net_of(written)) == {"y": (["d", "e", "p", "m", "z"], "z")}


def test_a_tensor_that_something_else_reads_too_has_no_follower():
    shared = graph(
        NODE("MatMul", ["x", "w"], ["y"]),
        NODE("Sigmoid", ["y"], ["g"]),
        NODE("MatMul", ["y", "w"], ["v"]),
        NODE("Mul", ["g", "v"], ["z"]),
        numbers=[("w", np.eye(8))],
    )
    assert followers(net_of(shared)) == {}


def test_values_that_are_moved_on_the_way_have_the_same_follower():
    moved = graph(
        NODE("MatMul", ["x", "w"], ["y"]),
        NODE("Reshape", ["y", "shape"], ["r"]),
        NODE("Tanh", ["r"], ["z"]),
        numbers=[("w", np.eye(8))],
    )
    assert set(followers(net_of(moved))) == {"y", "r"}


def test_what_is_moved_to_a_softmax_has_the_range_that_the_softmax_needs():
    """A mask of a billion costs the scores no integers, wherever the axes of the rows stand before."""
    masked = graph(
        NODE("Where", ["mask", "x", "far"], ["y"]),
        NODE("Transpose", ["y"], ["t"], perm=[1, 0]),
        NODE("Softmax", ["t"], ["s"], axis=0),
        NODE("Transpose", ["s"], ["z"], perm=[1, 0]),
        numbers=[("far", -1e9)],
    )
    behind = followers(net_of(masked))
    assert behind == {"t": Rows(0), "y": Moved("t")}
    scores = np.where(RNG.random((40, 1, 8)) < 0.5, -1e9, RNG.normal(size=(40, 1, 8))).astype(np.float32)
    scores[:, :, 3] = 1.0
    found = collect(lambda s: {"y": s["x"], "t": s["x"].T}, data(scores), "auto", followers=behind)
    assert found["y"] == found["t"]
    assert -14 < found["y"].min < -9


def test_what_is_smaller_than_the_largest_of_every_row_needs_no_integers():
    largest = graph(
        NODE("Where", ["mask", "x", "far"], ["y"]),
        NODE("ReduceMax", ["y"], ["r"], keepdims=1),
        NODE("Mul", ["r", "x"], ["z"]),
        numbers=[("far", -1e9)],
    )
    behind = followers(net_of(largest))
    assert behind == {"y": Moved("r")}
    scores = np.where(RNG.random((40, 1, 8)) < 0.5, -1e9, RNG.normal(size=(40, 1, 8))).astype(np.float32)
    scores[:, :, 3] = 1.0
    found = collect(lambda s: {"y": s["x"], "r": s["x"].max(-1)}, data(scores), "auto", followers=behind)
    assert found["y"] == found["r"]
    assert found["y"].min == 1.0


def test_a_lowered_graph_has_the_same_followers():
    from anynpu.lowering.lower import lower
    from anynpu.lowering.net import net_of as lowered_net

    model = helper.make_model(
        graph(
            NODE("MatMul", ["x", "w"], ["y"]),
            NODE("Sigmoid", ["y"], ["g"]),
            NODE("Mul", ["g", "y"], ["s"]),
            NODE("MatMul", ["s", "w"], ["t"]),
            NODE("Softmax", ["t"], ["z"]),
            numbers=[("w", RNG.normal(size=(8, 8)))],
        ),
        opset_imports=[helper.make_opsetid("", 17)],
        ir_version=8,
    )
    onnx.checker.check_model(model)
    here, there = followers(net_of(model.graph)), followers(lowered_net(lower(model)))
    x = np.linspace(-8, 8, 33)
    (function,) = (each.function for each in there.values() if isinstance(each, Pointwise))
    assert np.allclose(function(x), here["y"].function(x))
    assert [each for each in there.values() if isinstance(each, Rows)] == [here["t"]]


def test_a_function_of_single_numbers_is_computed_in_their_precision_unless_it_overflows():
    nodes = [helper.make_node("Exp", ["x"], ["e"]), helper.make_node("Log", ["e"], ["y"])]
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 3]) for name in "xy"]
    follower = followers(net_of(helper.make_graph(nodes, "net", ends[:1], ends[1:])))["x"]
    small, large = np.array([[-1, 0, 2]], np.float32), np.array([[-1, 0, 100]], np.float32)
    assert isinstance(follower, Pointwise)
    single, double = follower.function(small), follower.function(small.astype(np.float64))
    assert (single.dtype, double.dtype) == (np.float32, np.float64) and np.allclose(single, double, atol=1e-6)
    assert np.allclose(follower.function(large), large)
