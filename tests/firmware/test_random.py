"""Random graphs over the whole operator set: generated C and TensorFlow Lite Micro agree in every bit."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("tflite_micro")
pytest.importorskip("ai_edge_litert")
if shutil.which("gcc") is None:
    pytest.skip("install the package gcc", allow_module_level=True)

from compiled import lite
from emulator import random_input
from host import Library, compare, write_c
from random_graphs import Drawer, draw, draw_compared, draw_lacking, draw_logic

from anynpu.firmware.generator.graph import read_graph
from anynpu.firmware.generator.operators import EMITTERS

GRAPHS = int(os.environ.get("ANYNPU_TEST_GRAPHS", "150"))
"""How many graphs; 2,000 for a thorough run."""
BATCH = 10


@pytest.mark.parametrize("first", range(0, GRAPHS, BATCH))
def test_every_tensor_of_random_graphs_is_the_same(first, tmp_path):
    wrong = {}
    for seed in range(first, first + BATCH):
        folder = tmp_path / str(seed)
        folder.mkdir()
        model, kinds = draw(seed, folder / "graph.tflite")
        found = compare(model, folder, count=6, traced=6, flags=("-O1",))
        if found:
            wrong[f"seed {seed} {kinds}"] = found[:3]
    assert wrong == {}


@pytest.mark.parametrize("seed", range(4))
def test_whole_numbers_and_truth_values_are_the_same(seed, tmp_path):
    for draw_one in (draw_logic, draw_compared):
        folder = tmp_path / draw_one.__name__
        folder.mkdir()
        model, _ = draw_one(seed, folder / "graph.tflite")
        assert compare(model, folder, count=6, traced=6, flags=("-O1",)) == []


@pytest.mark.parametrize("kind", ["LOGISTIC", "TANH"])
@pytest.mark.parametrize("scale", [2.0**-12, 2.0**-11, 2.0**-13, 3.1e-7, 0.00013, 0.0021, 0.4])
def test_curves_of_16_bits_are_the_same(kind, scale, tmp_path):
    d = Drawer(np.random.default_rng(3))
    x = d.input((1, 64, 64), "int16", scale, 0)
    d.operator(kind, [x.number], [d.new((1, 64, 64), "int16", 1 / 32768, 0).number])
    assert compare(d.write(tmp_path / "net.tflite"), tmp_path, count=6, traced=6, flags=("-O1",)) == []


@pytest.mark.parametrize("alpha", [0.1, 0.01, -0.2, 1.5])
@pytest.mark.parametrize("scales", [(0.0003, 0.0003), (0.002, 0.0007), (0.0001, 0.04)])
def test_a_slope_below_zero_of_16_bits_is_the_same(alpha, scales, tmp_path):
    d = Drawer(np.random.default_rng(3))
    x = d.input((1, 64, 64), "int16", scales[0], 0)
    y = d.new((1, 64, 64), "int16", scales[1], 0)
    d.operator("LEAKY_RELU", [x.number], [y.number], "LeakyReluOptions", alpha=alpha)
    assert compare(d.write(tmp_path / "net.tflite"), tmp_path, count=6, traced=6, flags=("-O1",)) == []


@pytest.mark.parametrize(("stride", "kernel", "padding"), [(2, 2, 1), (2, 3, 0), (1, 3, 0), (3, 2, 1)])
def test_transposed_convolutions_of_16_bits_are_the_same(stride, kernel, padding, tmp_path):
    d = Drawer(np.random.default_rng(3))
    x = d.input((1, 5, 4, 6), "int16", 0.0004, 0)
    weights = d.tensor((7, kernel, kernel, 6), "int8", 0.006, 0, d.rng.integers(-127, 128, (7, kernel, kernel, 6)))
    bias = d.tensor((7,), "int64", 0.0004 * 0.006, 0, d.rng.integers(-(2**20), 2**20, 7))
    size = (1, *(n * stride if padding == 0 else (n - 1) * stride + kernel for n in (5, 4)), 7)
    out = d.new(size, "int16", 0.0009, 0)
    given = [d.ints(list(size)), weights, x.number, bias]
    options = {"strideH": stride, "strideW": stride, "padding": padding}
    d.operator("TRANSPOSE_CONV", given, [out.number], "TransposeConvOptions", **options)
    assert compare(d.write(tmp_path / "net.tflite"), tmp_path, count=6, traced=6, flags=("-O1",)) == []


def compare_lite(d: Drawer, folder: Path, count: int = 8) -> None:
    """Compares generated C with LiteRT's reference kernels, where TFLite-Micro has none."""
    model = d.write(folder / "net.tflite")
    write_c(model, folder)
    graph, library = read_graph(model), Library(folder)
    tensors = [graph.tensors[number] for number in graph.inputs]
    inputs = [np.stack([random_input(d.rng, t.shape, t.dtype, i) for i in range(count)]) for t in tensors]
    wanted = lite(model.read_bytes(), inputs, len(graph.outputs))
    for number in range(count):
        for found, each in zip(library.run([value[number] for value in inputs]), wanted, strict=True):
            np.testing.assert_array_equal(found, each[number].reshape(-1))


@pytest.mark.parametrize(("align", "half"), [(False, False), (True, False), (False, True)])
def test_pictures_of_16_bits_are_resized_as_by_litert(align, half, tmp_path):
    d = Drawer(np.random.default_rng(3))
    small = d.input((1, 5, 7, 3), "int16", 0.001, 0)
    options = {"alignCorners": align, "halfPixelCenters": half}
    for height, width in ((10, 14), (13, 9)):
        size, large = d.ints([height, width]), d.like(small, (1, height, width, 3))
        d.operator("RESIZE_BILINEAR", [small.number, size], [large.number], "ResizeBilinearOptions", **options)
    compare_lite(d, tmp_path)


@pytest.mark.parametrize("kind", ["REDUCE_MAX", "REDUCE_MIN"])
def test_extremes_of_16_bits_are_those_of_litert(kind, tmp_path):
    d = Drawer(np.random.default_rng(3))
    for shape in ((1, 5, 7, 3), (4, 9), (2, 3, 4)):
        x = d.input(shape, "int16")
        d.reduce(x, kind)
        d.reduce(x, kind)
    compare_lite(d, tmp_path)


@pytest.mark.parametrize("kind", ["EQUAL", "NOT_EQUAL", "LESS", "LESS_EQUAL", "GREATER", "GREATER_EQUAL"])
def test_comparisons_of_16_bits_are_those_of_litert(kind, tmp_path):
    d = Drawer(np.random.default_rng(3))
    some = d.input((1, 5, 7, 3), "int16")
    for shape in ((1, 5, 7, 3), (7, 1)):
        other = d.second(shape, "int16", like=some)
        out = d.tensor(some.shape, "bool", 1.0, 0)
        d.operator(kind, [some.number, other.number], [out], f"{kind.title().replace('_', '')}Options")
    taken = d.gather(some)
    whole = d.tensor(taken.shape, "int32")
    d.operator("CAST", [taken.number], [whole], "CastOptions", inDataType=7, outDataType=2)
    compare_lite(d, tmp_path)


@pytest.mark.parametrize("scales", [(0.001, 0.0005), (3e-5, 0.0003), (4.0, 0.001)])
def test_logarithms_of_16_bits_are_those_of_litert(scales, tmp_path):
    functions_of_every_number("LOG", scales, tmp_path)


@pytest.mark.parametrize("scales", [(0.0002, 0.02), (0.0005, 400.0), (0.002, 1e20), (1e-5, 0.00005)])
def test_exponentials_of_16_bits_are_those_of_litert(scales, tmp_path):
    functions_of_every_number("EXP", scales, tmp_path)


def functions_of_every_number(kind: str, scales: tuple[float, float], folder: Path) -> None:
    d = Drawer(np.random.default_rng(3))
    x, out = d.input((1, 256, 256), "int16", scales[0], 0), d.new((1, 256, 256), "int16", scales[1], 0)
    d.operator(kind, [x.number], [out.number])
    model, numbers = d.write(folder / "net.tflite"), np.arange(-(2**15), 2**15).astype(np.int16).reshape(1, 256, 256)
    write_c(model, folder)
    [found], [wanted] = Library(folder).run([numbers]), lite(model.read_bytes(), [numbers[None]], 1)
    np.testing.assert_array_equal(found, wanted.reshape(-1))


@pytest.mark.parametrize("turned", [(False, False), (True, False), (False, True), (True, True)])
@pytest.mark.parametrize("scale", [2e-5, 0.01, 0.9])
def test_products_of_matrices_of_16_bits_are_the_same(turned, scale, tmp_path):
    """In TFLite-Micro and LiteRT alike; the results reach from some steps to far beyond the last one."""
    d = Drawer(np.random.default_rng(3))
    sides = [(2, 1, 6, 40), (3, 40, 5)]
    shapes = [(*shape[:-2], *shape[-2:][:: -1 if turn else 1]) for shape, turn in zip(sides, turned, strict=True)]
    a, b = (d.input(shape, "int16", 0.003, 0) for shape in shapes)
    out = d.new((2, 3, 6, 5), "int16", scale, 0)
    options = {"adjX": turned[0], "adjY": turned[1]}
    d.operator("BATCH_MATMUL", [a.number, b.number], [out.number], "BatchMatMulOptions", **options)
    compare_lite(d, tmp_path)
    assert compare(tmp_path / "net.tflite", tmp_path, count=6, traced=6, flags=("-O1",)) == []


def test_the_graphs_draw_every_operator(tmp_path):
    seen = {kind for seed in range(40) for kind in draw_logic(seed, tmp_path / "graph.tflite")[1]}
    seen |= set(draw_lacking(0, tmp_path / "graph.tflite")[1])
    for seed in range(2000):
        seen |= set(draw(seed, tmp_path / "graph.tflite")[1])
        if set(EMITTERS) <= seen:
            break
    assert set(EMITTERS) <= seen
