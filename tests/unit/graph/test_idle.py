"""Nodes that change nothing go, twins become one, and ONNX Runtime gives the same; others stay."""

from __future__ import annotations

import numpy as np
import pytest
from graph_nets import parse, run, weights

from anynpu.graph import passes
from anynpu.graph.idle import IDLE, JOINED, PADDING, TWINS
from anynpu.graph.shapes import infer

ZEROS, ONES, FOUR = np.zeros((1, 4, 1), np.float32), np.ones(3, np.float32), weights(4)
INTS = {
    "zero": np.array([0]),
    "all": np.array([9]),
    "axis": np.array([1]),
    "one": np.array([1]),
    "back": np.array([-1]),
    "none": np.zeros(6, np.int64),
    "some": np.array([0, 1, 0, 0, 0, 0]),
    "same": np.array([2, 4, 3]),
    "once": np.ones(3, np.int64),
    "twice": np.array([1, 2, 1]),
    "far": np.array([-9]),
}
IDLING = [
    "Add(r, zeros)",
    "Add(zeros, r)",
    "Sub(r, zeros)",
    "Mul(r, ones)",
    "Mul(ones, r)",
    "Div(r, ones)",
    "Pow(r, ones)",
    "Cast<to=1>(r)",
    "CastLike(r, r)",
    "Slice(r, zero, all, axis)",
    "Slice(r, zero, all, axis, one)",
    "Pad(r, none)",
    "Transpose<perm=[0,1,2]>(r)",
    "Concat<axis=1>(r)",
    "Identity(r)",
    "Dropout(r)",
    "Reshape(r, same)",
    "Expand(r, same)",
    "Expand(r, once)",
    "Tile(r, once)",
]
BUSY = [
    "Sub(zeros, r)",
    "Div(ones, r)",
    "Pow(ones, r)",
    "Mul(r, zeros)",
    "Add(r, ones)",
    "Slice(r, back, far, axis, back)",
    "Slice(r, one, all, axis)",
    "Pad(r, some)",
    "Tile(r, twice)",
    "Transpose<perm=[1,0,2]>(r)",
    "Add(r, larger)",
]
STORED = {"zeros": ZEROS, "ones": ONES, "larger": np.zeros((3, 1, 1, 1), np.float32), **INTS}


def built(node, behind="y = Exp(n)"):
    names = {
        name: value for name, value in STORED.items() if f" {name}," in f" {node},".replace(")", ",").replace("(", " ")
    }
    return infer(
        parse(f"g (float[2,4,3] x) => (float y) {{\nr = Relu(x)\nn = {node}\n{behind}\n}}", **names), strict=False
    )


@pytest.mark.parametrize("node", IDLING)
def test_idle_nodes_go(node):
    for behind in ("y = Exp(n)", "y = Identity(n)"):
        model = built(node, behind)
        simpler, (effect,) = passes.run([passes.Repeated((IDLE,))], model)
        assert [each.op_type for each in simpler.graph.node] == (["Relu", "Exp"] if "Exp" in behind else ["Relu"])
        assert effect.changed == 1 + ("Identity" in behind) and not simpler.graph.initializer
        np.testing.assert_array_equal(run(simpler, weights(2, 4, 3))[0], run(model, weights(2, 4, 3))[0])


@pytest.mark.parametrize("node", BUSY)
def test_others_stay(node):
    model = built(node)
    assert passes.run([IDLE], model)[1][0].changed == 0


def test_an_output_that_repeats_an_input_or_another_output_stays():
    body = "y = Identity(x)\nz = Relu(x)\nv = Identity(z)"
    model = parse(f"g (float[2,3] x) => (float[2,3] y, float[2,3] z, float[2,3] v) {{\n{body}\n}}")
    simpler, _ = passes.run([IDLE], infer(model))
    assert [value.name for value in simpler.graph.output] == ["y", "z", "v"]
    for one, other in zip(run(simpler, weights(2, 3)), run(model, weights(2, 3)), strict=True):
        np.testing.assert_array_equal(one, other)


def test_what_a_dropout_masks_is_kept():
    model = parse("g (float[2,3] x) => (float[2,3] y, bool[2,3] m) {\nd, m = Dropout(x)\ny = Relu(d)\n}")
    assert passes.run([IDLE], infer(model))[1][0].changed == 0


TWIN = """g (float[2,4] x) => (float[2,4] y, float[2,4] z) {{
    a = {first}
    b = {second}
    y = Exp(a)
    z = Neg(b)
}}"""


@pytest.mark.parametrize(
    ("first", "second", "left"),
    [
        ("Mul(x, s)", "Mul(x, t)", 3),
        ("Mul(x, s)", "Mul(x, u)", 4),
        ("Mul(x, s)", "Mul(t, x)", 4),
        ("LeakyRelu<alpha=0.1>(x)", "LeakyRelu<alpha=0.1>(x)", 3),
        ("LeakyRelu<alpha=0.1>(x)", "LeakyRelu<alpha=0.2>(x)", 4),
        ("RandomNormalLike(x)", "RandomNormalLike(x)", 4),
    ],
)
def test_twins_become_one(first, second, left):
    tensors = {"s": FOUR, "t": FOUR.copy(), "u": weights(4, seed=1)}
    text = TWIN.format(first=first, second=second)
    model = parse(text, **{name: value for name, value in tensors.items() if f"{name})" in text or f"({name}," in text})
    simpler, _ = passes.run([TWINS], infer(model))
    assert len(simpler.graph.node) == left
    if "Random" not in first:
        for one, other in zip(run(simpler, weights(2, 4)), run(model, weights(2, 4)), strict=True):
            np.testing.assert_array_equal(one, other)


CHAINS = {
    "two reshapes": ("a = Reshape(x, p)\ny = Reshape(a, q)", "float[8,3]"),
    "zeros and rests": ("a = Reshape(x, q)\ny = Reshape(a, r)", "float[8,3,1]"),
    "a squeeze": ("u = Unsqueeze(x, axis)\ny = Reshape(u, q)", "float[8,3]"),
    "transposes": ("a = Transpose<perm=[2,0,1]>(x)\ny = Transpose<perm=[1,0,2]>(a)", "float[2,3,4]"),
    "slices": ("a = Slice(x, zero, two, axis)\ny = Slice(a, zero, two, last)", "float[2,2,2]"),
}
NUMBERS = {"p": [4, 6], "q": [8, -1], "r": [0, -1, 1], "axis": [1], "zero": [0], "two": [2], "last": [-1]}


@pytest.mark.parametrize("name", CHAINS)
def test_moves_in_a_row_are_one(name):
    body, gives = CHAINS[name]
    stored = {key: np.array(value) for key, value in NUMBERS.items() if f" {key})" in body or f" {key}," in body}
    model = parse(f"g (float[2,4,3] x) => ({gives} y) {{\n{body}\n}}", **stored)
    simpler, (effect,) = passes.run([JOINED], infer(model))
    assert effect.changed == 1 and simpler.graph.node[-1].input[0] == "x"
    np.testing.assert_array_equal(run(simpler, weights(2, 4, 3))[0], run(model, weights(2, 4, 3))[0])


def test_three_slices_in_a_row_are_one():
    body = "a = Slice(x, zero, two, first)\nb = Slice(a, zero, two, second)\ny = Slice(b, zero, two, third)"
    stored = {"zero": [1], "two": [3], "first": [0], "second": [1], "third": [2]}
    model = parse(
        f"g (float[3,4,5] x) => (float[2,2,2] y) {{\n{body}\n}}", **{name: np.array(v) for name, v in stored.items()}
    )
    simpler, _ = passes.run([passes.Repeated((JOINED,))], infer(model))
    assert simpler.graph.node[-1].input[0] == "x"
    np.testing.assert_array_equal(run(simpler, weights(3, 4, 5))[0], run(model, weights(3, 4, 5))[0])


def test_a_twin_that_gives_more_stays():
    body = "a = Dropout(x)\nb, m = Dropout(x)\ny = Relu(a)\nz = Neg(b)"
    model = parse(f"g (float[2,3] x) => (float[2,3] y, float[2,3] z, bool[2,3] m) {{\n{body}\n}}")
    simpler, _ = passes.run([TWINS], infer(model))
    for one, other in zip(run(simpler, weights(2, 3)), run(model, weights(2, 3)), strict=True):
        np.testing.assert_array_equal(one, other)


def test_slices_of_one_axis_stay_two():
    body = "a = Slice(x, zero, two, axis)\ny = Slice(a, zero, two, axis)"
    stored = {"zero": np.array([1]), "two": np.array([3]), "axis": np.array([1])}
    model = parse(f"g (float[2,4,3] x) => (float[2,1,3] y) {{\n{body}\n}}", **stored)
    assert passes.run([JOINED], infer(model))[1][0].changed == 0


def padded(pads, settings="", value=0.0, conv=""):
    shape = ",".join(map(str, np.array([1, 3, 6, 6]) + np.reshape(pads, (2, 4)).sum(axis=0)))
    body = f"p = Pad{settings}(x, sizes, value)\ny = Conv{conv}(p, w)"
    model = parse(
        f"g (float[1,3,6,6] x) => (float[N,M,H,W] y) <float[{shape}] p> {{\n{body}\n}}",
        sizes=np.array(pads),
        value=np.float32(value),
        w=weights(4, 3, 3, 3),
    )
    return passes.run([PADDING], model)[0], model


@pytest.mark.parametrize("conv", ["", "<pads=[1,0,0,2]>", "<strides=[2,2]>"])
def test_zeros_before_a_convolution_are_its_own_padding(conv):
    inside, model = padded([0, 0, 1, 2, 0, 0, 3, 0], conv=conv)
    assert [node.op_type for node in inside.graph.node if node.op_type == "Conv" and node.input[0] == "x"]
    np.testing.assert_allclose(run(inside, weights(1, 3, 6, 6))[0], run(model, weights(1, 3, 6, 6))[0], rtol=1e-5)


@pytest.mark.parametrize(
    ("pads", "settings", "value", "conv"),
    [
        ([0, 0, 1, 1, 0, 0, 1, 1], "", 1.0, ""),
        ([0, 0, 1, 1, 0, 0, 1, 1], '<mode="reflect">', 0.0, ""),
        ([0, 0, 1, 1, 0, 0, 1, 1], "", 0.0, '<auto_pad="SAME_UPPER">'),
        ([0, 0, -1, 1, 0, 0, 1, 1], "", 0.0, ""),
        ([0, 1, 1, 1, 0, -1, 1, 1], "", 0.0, ""),
    ],
    ids=["ones", "reflected", "a size of its own", "cut away", "channels"],
)
def test_other_padding_stays(pads, settings, value, conv):
    inside, _ = padded(pads, settings, value, conv)
    assert inside.graph.node[-1].input[0] == "p"
