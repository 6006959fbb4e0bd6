"""Where Vela 5.2.0 compiles something else than TFLite computes: a small model of each, as docs/ethos-u.md lists them.

A version of Vela that mends one of them fails here: then the row goes from the page and from `excuses.py`.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("ethosu.vela", reason="pip install 'anynpu[build]'")
pytest.importorskip("tflite_micro", reason="pip install 'anynpu[build]'")

sys.path.append(str(Path(__file__).parents[1] / "firmware"))

from compiled import compare
from excuses import excuse
from random_graphs import Drawer

from anynpu.errors import IntegrityError

pytestmark = pytest.mark.build


def drawer() -> Drawer:
    return Drawer(np.random.default_rng(7))


def grouped_convolution(d: Drawer) -> None:
    x = d.input((2, 1, 5, 4), "int8", 0.05, 0)
    weights = d.tensor((4, 1, 1, 2), "int8", 0.02, 0, d.rng.integers(-127, 127, (4, 1, 1, 2)))
    bias = d.tensor((4,), "int32", 0.001, 0, [1, 2, 3, 4])
    out = d.new((2, 1, 5, 4), "int8", 0.05, 0)
    options = {"strideW": 1, "strideH": 1, "dilationWFactor": 1, "dilationHFactor": 1}
    d.operator("CONV_2D", [x.number, weights, bias], [out.number], "Conv2DOptions", **options)


def reduction(d: Drawer) -> None:
    x = d.input((1, 5, 2, 1), "int8", 0.05, 0)
    out = d.like(x, (1, 5))
    d.operator("REDUCE_MAX", [x.number, d.ints([2, 3])], [out.number], "ReducerOptions", keepDims=False)


def product_of_a_slice(d: Drawer) -> None:
    x, y = d.input((1, 1, 4), "int8", 0.05, 0), d.input((1, 2, 2), "int8", 0.05, 0)
    halves = [d.like(x, (1, 1, 2)) for _ in range(2)]
    d.operator("SPLIT", [d.ints([2]), x.number], [h.number for h in halves], "SplitOptions", numSplits=2)
    out = d.new((1, 1, 2), "int8", 0.05, 0)
    d.operator("BATCH_MATMUL", [halves[0].number, y.number], [out.number], "BatchMatMulOptions")


def table_behind_a_transpose(d: Drawer) -> None:
    x = d.input((1, 3, 4, 5), "int8", 0.05, 0)
    turned = d.like(x, (1, 4, 3, 5))
    d.operator("TRANSPOSE", [x.number, d.ints([0, 2, 1, 3])], [turned.number], "TransposeOptions")
    d.unary(turned, "LEAKY_RELU")


def nearest_neighbour(d: Drawer) -> None:
    x = d.input((1, 6, 8, 4), "int8", 0.05, 0)
    out = d.like(x, (1, 6, 6, 4))
    options = {"alignCorners": False, "halfPixelCenters": False}
    d.operator(
        "RESIZE_NEAREST_NEIGHBOR",
        [x.number, d.ints([6, 6])],
        [out.number],
        "ResizeNearestNeighborOptions",
        **options,
    )


def narrow_bias(d: Drawer) -> None:
    x = d.input((1, 8), "int16", 0.001, 0)
    weights = d.tensor((4, 8), "int8", 0.0217, 0, d.rng.integers(-127, 127, (4, 8)))
    bias = d.tensor((4,), "int32", 0.0000217, 0, [1, 2, 3, 4])
    out = d.new((1, 4), "int16", 0.003, 0)
    d.operator("FULLY_CONNECTED", [x.number, weights, bias], [out.number], "FullyConnectedOptions")


DEFECTS = [
    (grouped_convolution, "ethos-u55-128"),
    (grouped_convolution, "ethos-u85-256"),
    (reduction, "ethos-u65-256"),
    (product_of_a_slice, "ethos-u55-256"),
    (table_behind_a_transpose, "ethos-u55-64"),
    (nearest_neighbour, "ethos-u85-256"),
    (narrow_bias, "ethos-u85-256"),
]


@pytest.mark.parametrize(("draw", "chip"), DEFECTS, ids=[f"{draw.__name__}-{chip}" for draw, chip in DEFECTS])
def test_the_twin_shows_what_vela_compiles_differently(draw, chip, tmp_path):
    d = drawer()
    draw(d)
    model = d.write(tmp_path / "net.tflite")
    assert excuse(model, chip)
    try:
        comparison = compare(model, chip, tmp_path, count=8)
    except IntegrityError as error:
        assert draw in (table_behind_a_transpose, reduction), error.message
        return
    assert comparison.differing > 0
