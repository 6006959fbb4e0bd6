"""Inputs that are bound to a value, and the branches and loops that become plain by it; ONNX Runtime is the judge."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from anynpu.errors import ConfigError, Unsupported
from anynpu.graph.fix import fixed, with_sample_axis, without_constant_outputs
from anynpu.graph.shapes import make_static
from anynpu.graph.simplify import simplify

FLOAT, INT64, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL


def value(name, kind, shape):
    return helper.make_tensor_value_info(name, kind, shape)


def number(name, array):
    return numpy_helper.from_array(np.asarray(array), name)


def model(nodes, inputs, outputs, constants=()):
    graph = helper.make_graph(nodes, "net", inputs, outputs, list(constants))
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    onnx.checker.check_model(made)
    return made


def branching():
    """x doubled at 8000, else squared and then, by a branch inside that goes by its shape, turned around."""
    rows = [helper.make_node("Shape", ["x"], ["size"]), helper.make_node("Gather", ["size", "one"], ["columns"])]
    inner_then = helper.make_graph(
        [helper.make_node("Neg", ["square"], ["t"])], "turn", [], [value("t", FLOAT, [1, 4])]
    )
    inner_else = helper.make_graph(
        [helper.make_node("Identity", ["square"], ["e"])], "stay", [], [value("e", FLOAT, [1, 4])]
    )
    wide = [
        helper.make_node("Mul", ["x", "x"], ["square"]),
        *rows,
        helper.make_node("Equal", ["columns", "four"], ["is_four"]),
        helper.make_node("If", ["is_four"], ["w"], then_branch=inner_then, else_branch=inner_else),
    ]
    other = helper.make_graph(
        wide, "wide", [], [value("w", FLOAT, [1, 4])], [number("one", np.int64(1)), number("four", np.int64(4))]
    )
    doubled = helper.make_graph([helper.make_node("Add", ["x", "x"], ["d"])], "double", [], [value("d", FLOAT, [1, 4])])
    nodes = [
        helper.make_node("Equal", ["sr", "low"], ["is_low"]),
        helper.make_node("If", ["is_low"], ["y"], then_branch=doubled, else_branch=other),
    ]
    inputs = [value("x", FLOAT, [1, 4]), value("sr", INT64, [])]
    return model(nodes, inputs, [value("y", FLOAT, [1, 4])], [number("low", np.int64(8000))])


def looping():
    """Adds x to itself as often as n says, keeps every sum, and multiplies by the number of the turn."""
    body = helper.make_graph(
        [
            helper.make_node("Identity", ["go"], ["on"]),
            helper.make_node("Add", ["sum", "x"], ["more"]),
            helper.make_node("Cast", ["turn"], ["real"], to=FLOAT),
            helper.make_node("Mul", ["more", "real"], ["row"]),
        ],
        "body",
        [value("turn", INT64, []), value("go", BOOL, []), value("sum", FLOAT, [1, 4])],
        [value("on", BOOL, []), value("more", FLOAT, [1, 4]), value("row", FLOAT, [1, 4])],
    )
    nodes = [helper.make_node("Loop", ["n", "yes", "x"], ["y", "rows"], body=body)]
    inputs = [value("x", FLOAT, [1, 4]), value("n", INT64, [])]
    outputs = [value("y", FLOAT, [1, 4]), value("rows", FLOAT, [None, 1, 4])]
    return model(nodes, inputs, outputs, [number("yes", np.asarray(True))])


def run(made, feeds):
    session = onnxruntime.InferenceSession(made.SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run(None, feeds)


X = np.asarray([[1.0, -2.0, 3.0, 0.5]], np.float32)


@pytest.mark.parametrize("rate", [8000, 16000])
def test_a_known_branch_is_written_out(rate):
    net = branching()
    bound, notes = fixed(net, {"sr": str(rate)})
    assert notes == (f"the input sr is fixed at {rate}",)
    assert [v.name for v in bound.graph.input] == ["x"]
    simple, _ = simplify(make_static(bound))
    assert not any(node.op_type == "If" for node in simple.graph.node)
    np.testing.assert_array_equal(run(simple, {"x": X})[0], run(net, {"x": X, "sr": np.asarray(rate)})[0])


def test_a_loop_of_a_known_count_is_written_out():
    net = looping()
    simple, _ = simplify(make_static(fixed(net, {"n": "3"})[0]))
    assert not any(node.op_type == "Loop" for node in simple.graph.node)
    for found, wanted in zip(run(simple, {"x": X}), run(net, {"x": X, "n": np.asarray(3)}), strict=True):
        np.testing.assert_array_equal(found, wanted)


def walking(backward, opset=18):
    """Adds columns of x up, forwards and backwards, and keeps every sum as a column."""
    body = helper.make_graph(
        [
            helper.make_node("Add", ["sum", "column"], ["more"], name="one"),
            helper.make_node("Neg", ["more"], ["less"], name="other"),
        ],
        "body",
        [value("sum", FLOAT, [2]), value("column", FLOAT, [2])],
        [value("more", FLOAT, [2]), value("less", FLOAT, [2])],
    )
    settings = {"scan_input_axes": [1], "scan_output_axes": [1], "num_scan_inputs": 1}
    settings |= {"scan_input_directions": [backward[0]], "scan_output_directions": [backward[1]]}
    nodes = [helper.make_node("Scan", ["zero", "x"], ["total", "sums"], body=body, **settings)]
    outputs = [value("total", FLOAT, [2]), value("sums", FLOAT, [2, 5])]
    made = model(nodes, [value("x", FLOAT, [2, 5])], outputs, [number("zero", np.zeros(2, np.float32))])
    made.opset_import[0].version = opset
    return made


@pytest.mark.parametrize("backward", [(0, 0), (1, 0), (0, 1), (1, 1)])
@pytest.mark.parametrize("opset", [11, 18])
def test_a_scan_is_written_out(backward, opset):
    net = walking(backward, opset)
    simple = make_static(net)
    assert not any(node.op_type == "Scan" for node in simple.graph.node)
    x = np.arange(10, dtype=np.float32).reshape(2, 5)
    for found, wanted in zip(run(simple, {"x": x}), run(net, {"x": x}), strict=True):
        np.testing.assert_array_equal(found, wanted)


def test_a_branch_that_goes_by_the_data_computes_both():
    """As a wake word's second net does, which is asked only where the first hears something."""
    then = helper.make_graph([helper.make_node("Mul", ["x", "x"], ["t"])], "then", [], [value("t", FLOAT, [1, 4])])
    other = helper.make_graph([helper.make_node("Neg", ["x"], ["e"])], "else", [], [value("e", FLOAT, [1, 4])])
    nodes = [
        helper.make_node("ReduceSum", ["x"], ["sum"], keepdims=0),
        helper.make_node("Greater", ["sum", "zero"], ["loud"]),
        helper.make_node("If", ["loud"], ["y"], then_branch=then, else_branch=other),
    ]
    outputs = [value("y", FLOAT, [1, 4])]
    net = model(nodes, [value("x", FLOAT, [1, 4])], outputs, [number("zero", np.float32(0))])
    simple = make_static(net)
    assert not any(node.op_type == "If" for node in simple.graph.node)
    for x in (X, -X):
        np.testing.assert_array_equal(run(simple, {"x": x})[0], run(net, {"x": x})[0])


def test_an_output_that_no_input_reaches_is_left_out():
    nodes = [
        helper.make_node("Neg", ["x"], ["y"]),
        helper.make_node("Shape", ["x"], ["size"]),
        helper.make_node("Add", ["n", "size"], ["length"]),
    ]
    inputs = [value("x", FLOAT, [1, 4]), value("n", INT64, [2])]
    net = model(nodes, inputs, [value("y", FLOAT, [1, 4]), value("length", INT64, [2])])
    assert without_constant_outputs(net) == (net, ())
    kept, notes = without_constant_outputs(fixed(net, {"n": "3"})[0])
    assert [v.name for v in kept.graph.output] == ["y"]
    assert "'length'" in notes[0]
    alone = model(nodes[1:], inputs, [value("length", INT64, [2])])
    assert without_constant_outputs(fixed(alone, {"n": "3"})[0])[1] == ()


def counting(limit, bound):
    """A while loop as TensorFlow's converter writes it: no count, a counter and its bound carried along."""
    carried = [value("at", INT64, []), value("sum", FLOAT, [1]), value("end", INT64, [])]
    body = helper.make_graph(
        [
            helper.make_node("Add", ["at", "one"], ["next"]),
            helper.make_node("Gather", ["x", "at"], ["column"], axis=1),
            helper.make_node("Add", ["sum", "column"], ["more"]),
            helper.make_node("Less", ["next", "end"], ["on"]),
        ],
        "body",
        [value("turn", INT64, []), value("go", BOOL, []), *carried],
        [value("on", BOOL, []), value("next", INT64, []), value("more", FLOAT, [1]), value("end", INT64, [])],
        [number("one", np.int64(1))],
    )
    body.output.append(value("more", FLOAT, [1]))
    rows = [helper.make_node("Shape", ["x"], ["size"]), helper.make_node("Gather", ["size", bound], ["columns"])]
    nodes = [
        *rows,
        helper.make_node("Loop", [limit, "yes", "zero", "start", "columns"], ["a", "y", "b", "rows"], body=body),
    ]
    outputs = [value("y", FLOAT, [1]), value("rows", FLOAT, [None, 1])]
    stored = {"zero": np.int64(0), "one": np.int64(1), "two": np.int64(2), "yes": np.asarray(True)}
    constants = [number(name, array) for name, array in stored.items()] + [number("start", np.zeros(1, np.float32))]
    return model(nodes, [value("x", FLOAT, [1, 4])], outputs, constants)


@pytest.mark.parametrize("limit", ["", "two"])
def test_a_while_loop_whose_counter_is_known_is_written_out(limit):
    net = counting(limit, "one")
    simple, _ = simplify(make_static(net))
    assert not any(node.op_type == "Loop" for node in simple.graph.node)
    results = run(simple, {"x": X})
    assert len(results[1]) == (2 if limit else 4)
    for found, wanted in zip(results, run(net, {"x": X}), strict=True):
        np.testing.assert_array_equal(found, wanted)


def test_a_while_loop_that_reads_the_samples_stays_and_is_refused():
    net = counting("", "one")
    body = next(node for node in net.graph.node if node.op_type == "Loop").attribute[0].g
    body.node[-1].CopyFrom(helper.make_node("Less", ["more", "column"], ["smaller"]))
    body.node.append(helper.make_node("Squeeze", ["smaller"], ["on"]))
    with pytest.raises(Unsupported, match="Loop runs as often as the data say, or more than 256 times"):
        make_static(net)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"rs": "1"}, "the model has no input rs"),
        ({"sr": "fast"}, "numbers with commas"),
        ({"sr": "1.5"}, "int64, which has no such value"),
        ({"x": "1,2,3"}, "3 values for 4 elements"),
        ({"x": "0", "sr": "1"}, "without an input"),
    ],
)
def test_what_does_not_fit_is_refused(values, words):
    with pytest.raises(ConfigError, match=words):
        fixed(branching(), values)


def test_one_value_fills_an_input_and_several_are_taken_in_order():
    nodes = [helper.make_node("Add", ["x", "bias"], ["y"])]
    net = model(nodes, [value("x", FLOAT, [1, 4]), value("bias", FLOAT, [4])], [value("y", FLOAT, [1, 4])])
    assert run(fixed(net, {"bias": "2"})[0], {"x": X})[0].tolist() == (X + 2).tolist()
    assert run(fixed(net, {"bias": "1,2,3,4"})[0], {"x": X})[0].tolist() == (X + np.arange(1, 5)).tolist()


def test_a_state_gets_an_axis_for_samples():
    nodes = [helper.make_node("ReduceSum", ["state"], ["s"], keepdims=0), helper.make_node("Add", ["x", "s"], ["y"])]
    net = model(nodes, [value("x", FLOAT, [1, 4]), value("state", FLOAT, [2, 1, 3])], [value("y", FLOAT, [1, 4])])
    wide, notes = with_sample_axis(net)
    state = np.arange(6, dtype=np.float32).reshape(2, 1, 3)
    np.testing.assert_array_equal(run(wide, {"x": X, "state": state[None]})[0], run(net, {"x": X, "state": state})[0])
    assert notes == ("input state [2, 1, 3] is taken as [1, 2, 1, 3]: its first axis is not one of samples",)


@pytest.mark.parametrize("shape", [(7, 1, 5), (9, 3), (3, 12, 12), (16,)])
def test_a_sequence_before_its_batch_or_a_picture_by_itself_is_one_sample(shape):
    nodes = [helper.make_node("Sub", ["x", "z"], ["y"])]
    net = model(nodes, [value("x", FLOAT, shape), value("z", FLOAT, shape)], [value("y", FLOAT, shape)])
    wide, notes = with_sample_axis(net)
    x, z = np.random.default_rng(0).normal(size=(2, *shape)).astype(np.float32)
    np.testing.assert_array_equal(run(wide, {"x": x[None], "z": z[None]})[0], x - z)
    assert (
        notes[0] == (f"input x {list(shape)} is taken as {[1, *shape]}: its first axis is not one of samples")
        and len(notes) == 2
    )


def test_a_batch_of_pictures_stays_as_it_is():
    nodes = [helper.make_node("Add", ["x", "z"], ["y"])]
    net = model(nodes, [value("x", FLOAT, [8, 3, 4, 4]), value("z", FLOAT, [8])], [value("y", FLOAT, [8, 3, 4, 8])])
    assert with_sample_axis(net) == (net, ())


def test_a_result_that_is_a_number_gets_an_axis():
    nodes = [helper.make_node("ReduceSum", ["x"], ["y"], keepdims=0), helper.make_node("Add", ["x", "y"], ["z"])]
    net = model(nodes, [value("x", FLOAT, [1, 4])], [value("y", FLOAT, []), value("z", FLOAT, [1, 4])])
    wide, notes = with_sample_axis(net)
    assert notes == ("output y is a number: it is taken as [1]",)
    (number, z), (truth, same) = run(wide, {"x": X}), run(net, {"x": X})
    assert number.shape == (1,) and truth.shape == () and number[0] == truth and np.array_equal(z, same)


def recurrent(batch_first):
    rng = np.random.default_rng(0)
    shape = [1, 5, 3] if batch_first else [5, 1, 3]
    weights = [number("w", rng.normal(size=(1, 8, 3)).astype(np.float32))]
    weights.append(number("r", rng.normal(size=(1, 8, 2)).astype(np.float32)))
    turned = helper.make_node("Transpose", ["x"], ["sequence"], perm=[1, 0, 2] if batch_first else [0, 1, 2])
    cell = helper.make_node("LSTM", ["sequence", "w", "r"], ["y"], hidden_size=2)
    return model([turned, cell], [value("x", FLOAT, shape)], [value("y", FLOAT, [5, 1, 1, 2])], weights)


def test_a_sequence_in_front_of_its_batch_of_one_gets_an_axis_for_samples():
    net = make_static(recurrent(batch_first=False))
    wide, notes = with_sample_axis(net)
    x = np.random.default_rng(1).normal(size=(5, 1, 3)).astype(np.float32)
    np.testing.assert_array_equal(run(wide, {"x": x[None]})[0], run(net, {"x": x})[0])
    assert notes == ("input x [5, 1, 3] is taken as [1, 5, 1, 3]: its first axis is not one of samples",)
    plain = make_static(recurrent(batch_first=True))
    assert with_sample_axis(plain) == (plain, ())


@pytest.mark.parametrize("shape", [[], [4]])
def test_inputs_of_one_axis_or_none_are_whole_samples(shape):
    net = model([helper.make_node("Neg", ["x"], ["y"])], [value("x", FLOAT, shape)], [value("y", FLOAT, shape)])
    wide, _ = with_sample_axis(net)
    x = np.full(shape, 2.0, np.float32)
    assert run(wide, {"x": x[None]})[0].reshape(-1).tolist() == [-2.0] * x.size
