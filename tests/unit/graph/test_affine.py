"""Batch normalisations, factors and offsets go into the layer before them, and ONNX Runtime gives the same."""

from __future__ import annotations

import numpy as np
import pytest
from graph_nets import parse, run, weights

from anynpu.graph import passes
from anynpu.graph.affine import BATCH_NORM, CONSTANTS, DENSE, PLAIN
from anynpu.graph.shapes import infer

FOUR = {"s": weights(4), "o": weights(4), "m": weights(4), "v": np.abs(weights(4)) + 0.5}
KERNEL = weights(4, 3, 3, 3)
NORM = "y = BatchNormalization<epsilon=0.01>(c, s, o, m, v)"
LAYERS = {
    "convolution": (
        "float[1,3,8,8]",
        "float[1,4,6,6]",
        "c = Conv(x, w, b)",
        {"w": weights(4, 3, 3, 3), "b": weights(4)},
    ),
    "without a bias": ("float[1,3,8,8]", "float[1,4,6,6]", "c = Conv(x, w)", {"w": weights(4, 3, 3, 3)}),
    "depthwise": ("float[1,4,8,8]", "float[1,4,6,6]", "c = Conv<group=4>(x, w)", {"w": weights(4, 1, 3, 3)}),
    "transposed": ("float[1,3,8,8]", "float[1,4,10,10]", "c = ConvTranspose(x, w)", {"w": weights(3, 4, 3, 3)}),
    "dense": ("float[1,5]", "float[1,4]", "c = Gemm(x, w, b)", {"w": weights(5, 4), "b": weights(4)}),
    "dense, turned": ("float[1,5]", "float[1,4]", "c = Gemm<transB=1>(x, w)", {"w": weights(4, 5)}),
    "product": ("float[1,5]", "float[1,4]", "c = MatMul(x, w)", {"w": weights(5, 4)}),
    "one bias for all": ("float[1,5]", "float[1,4]", "c = Gemm(x, w, b)", {"w": weights(5, 4), "b": weights(1)}),
}


@pytest.mark.parametrize("name", LAYERS)
def test_it_goes_into_the_layer_before_it(name):
    takes, gives, layer, stored = LAYERS[name]
    model = parse(f"g ({takes} x) => ({gives} y) {{\n{layer}\n{NORM}\n}}", **stored, **FOUR)
    folded, (effect,) = passes.run([BATCH_NORM], model)
    assert effect.changed == 1 and len(folded.graph.node) == 1 and len(folded.graph.initializer) == 2
    shape = [int(size) for size in takes[6:-1].split(",")]
    x = np.random.default_rng(0).normal(size=shape).astype(np.float32)
    np.testing.assert_allclose(run(folded, x)[0], run(model, x)[0], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("layer", "outputs"),
    [
        ("c = Conv(x, w)", "float[1,4,6,6] y, float[1,4,6,6] c"),
        ("c = Conv(x, w)\nz = Relu(c)", "float[1,4,6,6] y, float[1,4,6,6] z"),
        ("r = Conv(x, w)\nc = Relu(r)", "float[1,4,6,6] y"),
        ("p = Conv(x, w)\nc = MatMul(p, u)", "float[1,4,6,4] y"),
    ],
    ids=["the layer's result is an output", "another node reads it", "a rectifier stands between", "other channels"],
)
def test_it_stays_where_the_layer_has_another_use(layer, outputs):
    model = parse(f"g (float[1,3,8,8] x) => ({outputs}) {{\n{layer}\n{NORM}\n}}", w=KERNEL, u=weights(6, 4), **FOUR)
    assert passes.run([BATCH_NORM], model)[1][0].changed == 0


def test_weights_that_two_layers_share_stay_for_the_other():
    text = (
        f"g (float[1,3,8,8] x) => (float[1,4,6,6] y, float[1,4,6,6] z) {{\nc = Conv(x, w)\n{NORM}\nz = Conv(x, w)\n}}"
    )
    model = parse(text, w=KERNEL, **FOUR)
    folded, (effect,) = passes.run([BATCH_NORM], model)
    x = np.random.default_rng(0).normal(size=(1, 3, 8, 8)).astype(np.float32)
    assert effect.changed == 1
    for one, other in zip(run(folded, x), run(model, x), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)


BEHIND = [
    "y = Mul(c, k)",
    "y = Mul(k, c)",
    "y = Div(c, k)",
    "y = Add(c, k)",
    "y = Add(k, c)",
    "y = Sub(c, k)",
    "y = Sub(k, c)",
]


@pytest.mark.parametrize("one", [False, True], ids=["each channel", "one number"])
@pytest.mark.parametrize("behind", BEHIND)
@pytest.mark.parametrize("name", LAYERS)
def test_constants_of_channels_go_into_the_layer_before_them(name, behind, one):
    takes, gives, layer, stored = LAYERS[name]
    constant = np.float32(1.5) if one else (weights(4, seed=3) if "," not in gives[9:] else weights(1, 4, 1, 1, seed=3))
    model = parse(f"g ({takes} x) => ({gives} y) {{\n{layer}\n{behind}\n}}", **stored, k=constant)
    folded, (effect,) = passes.run([CONSTANTS], infer(model))
    assert effect.changed == 1 and len(folded.graph.node) == 1
    x = np.random.default_rng(0).normal(size=[int(size) for size in takes[6:-1].split(",")]).astype(np.float32)
    np.testing.assert_allclose(run(folded, x)[0], run(model, x)[0], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("layer", "behind", "gives"),
    [
        ("c = Conv(x, w)", "y = Mul(c, rows)", "float[1,4,6,6] y"),
        ("c = Conv(x, w)", "y = Div(k, c)", "float[1,4,6,6] y"),
        ("c = Conv(x, w)", "y = Mul(c, many)", "float[2,4,6,6] y"),
        ("c = Conv(x, w)\nz = Conv(x, w)", "y = Mul(c, k)", "float[1,4,6,6] y, float[1,4,6,6] z"),
    ],
    ids=["other axes", "it divides", "it repeats samples", "weights of two layers"],
)
def test_constants_stay_where_they_are_not_those_of_channels(layer, behind, gives):
    shapes = {"k": (1, 4, 1, 1), "rows": (1, 1, 6, 1), "many": (2, 4, 1, 1)}
    stored = {
        key: np.abs(weights(*shape)) + 1 for key, shape in shapes.items() if f"{key})" in behind or f"({key}" in behind
    }
    model = parse(f"g (float[1,3,8,8] x) => ({gives}) {{\n{layer}\n{behind}\n}}", w=KERNEL, **stored)
    assert passes.run([CONSTANTS], infer(model))[1][0].changed == 0


@pytest.mark.parametrize("shape", [(3, 5), (1, 7, 5), (2, 3, 4, 5)], ids=str)
@pytest.mark.parametrize("bias", [(4,), (1, 4), (1,)], ids=str)
def test_a_product_and_its_bias_are_one_layer(shape, bias):
    sizes = ",".join(map(str, shape[:-1]))
    text = f"g (float[{sizes},5] x) => (float[{sizes},4] y) {{\nm = MatMul(x, w)\ny = Add(b, m)\n}}"
    model = parse(text, w=weights(5, 4), b=weights(*bias, seed=1))
    dense, (effect,) = passes.run([DENSE], infer(model))
    kinds = [node.op_type for node in dense.graph.node]
    assert effect.changed == 1 and kinds == (["Gemm"] if len(shape) == 2 else ["Reshape", "Gemm", "Reshape"])
    np.testing.assert_allclose(run(dense, weights(*shape))[0], run(model, weights(*shape))[0], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("bias", [(7, 1), (2, 7, 4), (3, 1, 1, 4)], ids=["rows", "each value", "more axes"])
def test_a_product_with_another_sum_behind_it_stays(bias):
    gives = "float[3,2,7,4]" if len(bias) == 4 else "float[2,7,4]"
    text = f"g (float[2,7,5] x) => ({gives} y) {{\nm = MatMul(x, w)\ny = Add(m, b)\n}}"
    model = parse(text, w=weights(5, 4), b=weights(*bias, seed=1))
    assert passes.run([DENSE], infer(model))[1][0].changed == 0


@pytest.mark.parametrize(("order", "rows_first"), [((1, 0, 2), True), ((0, 2, 1), False)], ids=["rows", "channels"])
def test_rows_are_turned_behind_the_layer(order, rows_first):
    size = (4, 3, 5)
    turned = [size[axis] for axis in order]
    text = f"g (float[4,3,5] x) => (float[{turned[0]},{turned[1]},4] y) {{\n"
    text += f"t = Transpose<perm=[{','.join(map(str, order))}]>(x)\nm = MatMul(t, w)\ny = Add(m, b)\n}}"
    model = parse(text, w=weights(turned[2], 4), b=weights(4, seed=1))
    dense, (effect,) = passes.run([DENSE], infer(model))
    assert effect.changed == 1 and (dense.graph.node[-1].op_type == "Transpose") is rows_first
    np.testing.assert_allclose(run(dense, weights(*size))[0], run(model, weights(*size))[0], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("layer", ["Gemm<alpha=0.5, beta=2.0>(x, w, b)", "Gemm<alpha=0.5, beta=3.0>(x, w)"])
def test_factors_of_a_dense_layer_are_in_its_constants(layer):
    biased = "b)" in layer
    text = f"g (float[3,5] x) => (float[3,4] y, float[3,4] z) {{\ny = {layer}\nz = MatMul(x, w)\n}}"
    model = parse(text, w=weights(5, 4), **({"b": weights(4)} if biased else {}))
    plain, (effect,) = passes.run([PLAIN], model)
    assert effect.changed == 1 and not plain.graph.node[0].attribute
    x = weights(3, 5, seed=2)
    for mine, theirs in zip(run(plain, x), run(model, x), strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-5, atol=1e-6)


def test_a_factor_of_a_computed_product_stays():
    model = parse("g (float[3,5] x, float[5,4] w) => (float[3,4] y) {\ny = Gemm<alpha=0.5>(x, w)\n}")
    assert passes.run([PLAIN], model)[1][0].changed == 0
