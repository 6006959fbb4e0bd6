"""Layouts come from operators, never from sizes."""

from __future__ import annotations

import numpy as np
import pytest
from graph_nets import parse, weights

from anynpu.graph.layouts import read_layouts

W = weights(4, 3, 3, 3)


def test_convolution_says_channels_first():
    model = parse("g (float[1,3,8,8] x) => (float[1,4,6,6] y) { c = Conv(x, w)\n y = Relu(c) }", w=W)
    assert read_layouts(model) == {"x": "NCHW", "y": "NCHW"}


def test_nothing_is_guessed_from_sizes():
    model = parse("g (float[1,3,224,224] x) => (float[1,3,224,224] y) { y = Relu(x) }")
    assert read_layouts(model) == {"x": "", "y": ""}


def test_normalisation_in_front_is_followed():
    model = parse(
        "g (float[1,3,8,8] x) => (float[1,4] y) { a = Sub(x, m)\n b = Div(a, m)\n c = Conv(b, w)\n"
        " p = GlobalAveragePool(c)\n y = Flatten(p) }",
        w=W,
        m=np.ones((1, 3, 1, 1), np.float32),
    )
    assert read_layouts(model) == {"x": "NCHW", "y": ""}


def test_transpose_in_front_and_behind():
    model = parse(
        "g (float[1,8,8,3] x) => (float[1,6,6,4] y) { t = Transpose<perm=[0,3,1,2]>(x)\n c = Conv(t, w)\n"
        " y = Transpose<perm=[0,2,3,1]>(c) }",
        w=W,
    )
    assert read_layouts(model) == {"x": "NHWC", "y": "NHWC"}


def test_three_dimensions():
    model = parse("g (float[1,3,8] x) => (float[1,4,6] y) { y = Conv(x, w) }", w=weights(4, 3, 3))
    assert read_layouts(model) == {"x": "NCW", "y": "NCW"}


def test_second_input_of_a_sum():
    model = parse(
        "g (float[1,3,8,8] x, float[1,4,6,6] z) => (float[1,4,6,6] y) { c = Conv(x, w)\n y = Add(c, z) }", w=W
    )
    assert read_layouts(model)["z"] == "NCHW"


def test_reshape_stops():
    model = parse(
        "g (float[1,192] x) => (float[1,4,6,6] y) { r = Reshape(x, s)\n y = Conv(r, w) }",
        w=W,
        s=np.array([1, 3, 8, 8]),
    )
    assert read_layouts(model) == {"x": "", "y": "NCHW"}


def test_disagreement_is_no_layout():
    model = parse(
        "g (float[1,3,3,3] x) => (float[1,4,1,1] y, float[1,4,1,1] z) { y = Conv(x, w)\n"
        " t = Transpose<perm=[0,3,1,2]>(x)\n z = Conv(t, w) }",
        w=W,
    )
    assert read_layouts(model) == {"x": "", "y": "NCHW", "z": "NCHW"}


@pytest.mark.parametrize(("scales", "layout"), [([1, 1, 2, 2], "NCHW"), ([1, 2, 2, 1], ""), ([2, 2, 2, 2], "")])
def test_resize(scales, layout):
    shape = [d * s for d, s in zip([1, 4, 4, 4], scales, strict=True)]
    model = parse(f"g (float[1,4,4,4] x) => (float{shape} y) {{ y = Resize(x, , s) }}", s=np.array(scales, np.float32))
    assert read_layouts(model)["x"] == layout


def test_dense_networks_have_no_layout():
    model = parse("g (float[1,8] x) => (float[1,4] y) { y = MatMul(x, w) }", w=weights(8, 4))
    assert read_layouts(model) == {"x": "", "y": ""}
