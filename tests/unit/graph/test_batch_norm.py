"""A batch normalisation goes into the layer before it, and ONNX Runtime gives the same."""

from __future__ import annotations

import numpy as np
import pytest
from graph_nets import parse, run, weights

from anynpu.graph import passes
from anynpu.graph.batch_norm import BATCH_NORM

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
