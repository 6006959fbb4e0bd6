"""Files of other converters: our reading of their operators computes what LiteRT does with the file itself."""

from __future__ import annotations

import numpy as np
import pytest
from tflite_builder import Builder, schema

from anynpu.errors import Unsupported
from anynpu.lowering.clean import numbers_with_axes, without_idle
from anynpu.lowering.read import from_bytes
from anynpu.lowering.spellings import SPELLINGS
from anynpu.lowering.squares import means_for_sums
from anynpu.lowering.write import to_bytes
from anynpu.quantize.tflite_given import read_given
from anynpu.runtime.litert import open_interpreter
from anynpu.runtime.tflite_file import operator_names, read_model

pytest.importorskip("ai_edge_litert")


def executed(content, x):
    interpreter = open_interpreter(content)
    interpreter.set_tensor(interpreter.get_input_details()[0]["index"], x)
    interpreter.invoke()
    details = sorted(interpreter.get_output_details(), key=lambda detail: detail["name"])
    return [interpreter.get_tensor(detail["index"]) for detail in details]


def squeezed(b, x):
    flat = b.operator("SQUEEZE", [x], [b.tensor("flat", (2, 3, 4), "float32")], options="SqueezeOptions")
    axis = b.constant("axis", 3)
    return [b.operator("EXPAND_DIMS", [flat, axis], [b.tensor("y", (2, 3, 4, 1), "float32")])]


def reshaped_by_a_setting(b, x):
    y = b.tensor("y", (4, 6), "float32")
    return [b.operator("RESHAPE", [x], [y], options="ReshapeOptions", newShape=[4, 6])]


def stacked(axis):
    def net(b, x):
        shape = [1, 2, 3, 4]
        shape.insert(axis % 5, 2)
        other = b.unary("TANH", x, "tanh", (1, 2, 3, 4), "float32")
        y = b.tensor("y", shape, "float32")
        return [b.operator("PACK", [x, other], [y], options="PackOptions", axis=axis, valuesCount=2)]

    return net


def unstacked(axis):
    def net(b, x):
        shape = [1, 2, 3, 4]
        count = shape.pop(axis)
        parts = [b.tensor(f"y{number}", shape, "float32") for number in range(count)]
        b.operator("UNPACK", [x], parts, options="UnpackOptions", axis=axis, num=count)
        return parts

    return net


def pieces(b, x):
    parts = [b.tensor(f"y{size}", (1, 2, 3, size), "float32") for size in (1, 3)]
    sizes, axis = b.constant("sizes", [1, 3]), b.constant("axis", -1)
    b.operator("SPLIT_V", [x, sizes, axis], parts, options="SplitVOptions", numSplits=2)
    return parts


def sum_of_four(b, x):
    others = [b.unary(kind, x, kind, (1, 2, 3, 4), "float32") for kind in ("TANH", "ABS", "LOGISTIC")]
    return [b.operator("ADD_N", [x, *others], [b.tensor("y", (1, 2, 3, 4), "float32")])]


def one_by_one(kind):
    def net(b, x):
        return [b.unary(kind, x, "y", (1, 2, 3, 4), "float32")]

    return net


def choice(rows):
    def net(b, x):
        flat = b.operator("SQUEEZE", [x], [b.tensor("flat", (2, 3, 4), "float32")], options="SqueezeOptions")
        zero = b.tensor("zero", (), "float32", np.float32(0))
        condition = b.operator("GREATER", [flat, zero], [b.tensor("c", (2, 3, 4), "bool", scale=None)])
        if rows:
            condition = b.tensor("rows", (2,), "bool", np.asarray([True, False]), scale=None)
        other = b.unary("TANH", flat, "tanh", (2, 3, 4), "float32")
        return [b.operator("SELECT", [condition, flat, other], [b.tensor("y", (2, 3, 4), "float32")])]

    return net


def unit_length(b, x):
    y = b.tensor("y", (1, 2, 3, 4), "float32")
    return [b.operator("L2_NORMALIZATION", [x], [y], options="L2NormOptions")]


def wide_window(kernel, block, pads, crops, depthwise=False):
    """A convolution as TensorFlow's converter writes one whose window is spread out."""

    def net(b, x):
        wide = b.constant("wide", np.ones((1, 9, 10, 4)) * np.linspace(-1, 1, 90).reshape(1, 9, 10, 1), "float32")
        small = [
            b.operator(
                "PAD",
                [x, b.constant("edge", [[0, 0], [0, 7], [0, 7], [0, 0]])],
                [b.tensor("larger", (1, 9, 10, 4), "float32")],
            )
        ]
        source = b.binary("ADD", small[0], wide, "source", (1, 9, 10, 4), "float32")
        sizes = [(size + sum(pad)) // step for size, pad, step in zip((9, 10), pads, block, strict=True)]
        apart = b.tensor("apart", (block[0] * block[1], *sizes, 4), "float32")
        b.operator("SPACE_TO_BATCH_ND", [source, b.constant("block", block), b.constant("pads", pads)], [apart])
        shape = (block[0] * block[1], *(size - kernel + 1 for size in sizes), 4 if depthwise else 3)
        values = np.random.default_rng(2).normal(size=(1, kernel, kernel, 4) if depthwise else (3, kernel, kernel, 4))
        filters = b.tensor("filters", values.shape, "float32", values)
        bias = b.tensor("bias", (shape[-1],), "float32", np.arange(shape[-1]))
        table = (
            {"options": "DepthwiseConv2DOptions", "depthMultiplier": 1} if depthwise else {"options": "Conv2DOptions"}
        )
        kind = "DEPTHWISE_CONV_2D" if depthwise else "CONV_2D"
        inner = b.operator(
            kind,
            [apart, filters, bias],
            [b.tensor("inner", shape, "float32")],
            strideW=1,
            strideH=1,
            padding=schema.Padding.VALID,
            **table,
        )
        ends = [size * step - sum(crop) for size, step, crop in zip(shape[1:3], block, crops, strict=True)]
        y = b.tensor("y", (1, *ends, shape[-1]), "float32")
        return [b.operator("BATCH_TO_SPACE_ND", [inner, b.constant("back", block), b.constant("crops", crops)], [y])]

    return net


WIDE = {
    "same": wide_window(3, [2, 2], [[2, 3], [2, 2]], [[0, 1], [0, 0]]),
    "depthwise": wide_window(3, [2, 2], [[2, 3], [2, 2]], [[0, 1], [0, 0]], depthwise=True),
    "no pads": wide_window(3, [3, 2], [[0, 0], [0, 0]], [[0, 0], [0, 0]]),
    "one side": wide_window(2, [2, 2], [[3, 0], [1, 1]], [[1, 0], [0, 1]]),
}


@pytest.mark.parametrize("case", WIDE)
def test_a_convolution_between_space_and_batch_has_a_wider_window(tmp_path, case):
    b = Builder()
    outputs = WIDE[case](b, b.input((1, 2, 3, 4), "float32"))
    content = b.write(tmp_path / "m.tflite", outputs).read_bytes()
    graph = from_bytes(content)
    kinds = {operator.kind for operator in graph.operators}
    assert not kinds & {"SPACE_TO_BATCH_ND", "BATCH_TO_SPACE_ND"}
    x = np.random.default_rng(0).normal(size=(1, 2, 3, 4)).astype(np.float32)
    [ours], [theirs] = executed(to_bytes(graph), x), executed(content, x)
    np.testing.assert_allclose(ours, theirs, atol=1e-5)


def test_a_length_of_one_is_that_of_litert(tmp_path):
    b = Builder()
    content = b.write(tmp_path / "m.tflite", unit_length(b, b.input((1, 2, 3, 4), "float32"))).read_bytes()
    x = np.random.default_rng(0).normal(size=(1, 2, 3, 4)).astype(np.float32)
    x[0, 0, 0], x[0, 0, 1] = 0, 1e-8
    [ours], [theirs] = executed(to_bytes(from_bytes(content)), x), executed(content, x)
    np.testing.assert_allclose(ours, theirs, rtol=1e-5)


@pytest.mark.parametrize(
    "net",
    [
        sum_of_four,
        one_by_one("NEG"),
        one_by_one("SQUARE"),
        choice(True),
        choice(False),
        squeezed,
        reshaped_by_a_setting,
        stacked(0),
        stacked(2),
        stacked(-1),
        unstacked(0),
        unstacked(1),
        unstacked(-1),
        pieces,
    ],
)
def test_operators_of_other_converters_compute_the_same(tmp_path, net):
    b = Builder()
    outputs = net(b, b.input((1, 2, 3, 4), "float32"))
    content = b.write(tmp_path / "m.tflite", outputs).read_bytes()
    assert not {operator.kind for operator in from_bytes(content).operators} & {*SPELLINGS} - {"RESHAPE"}
    x = np.random.default_rng(0).normal(size=(1, 2, 3, 4)).astype(np.float32)
    for ours, theirs in zip(executed(to_bytes(from_bytes(content)), x), executed(content, x), strict=True):
        assert np.array_equal(ours, theirs)


def test_what_depends_on_shapes_alone_is_stored(tmp_path):
    b = Builder()
    x = b.input((1, 6, 4), "float32")
    shape = b.operator("SHAPE", [x], [b.tensor("shape", (3,), "int32", scale=None)], options="ShapeOptions", outType=2)
    ends = [b.constant(name, values) for name, values in (("begin", [0]), ("end", [1]), ("strides", [1]))]
    batch = b.tensor("batch", (), "int32", scale=None)
    b.operator("STRIDED_SLICE", [shape, *ends], [batch], options="StridedSliceOptions", shrinkAxisMask=1)
    wanted = b.tensor("wanted", (2,), "int32", scale=None)
    b.operator("PACK", [batch, b.constant("rest", 24)], [wanted], options="PackOptions", axis=0, valuesCount=2)
    y = b.operator("RESHAPE", [x, wanted], [b.tensor("y", (1, 24), "float32")])
    path = b.write(tmp_path / "m.tflite", [y])
    given = read_given(path)
    assert operator_names(read_model(given.content)) == ["RESHAPE"]
    assert "3 operators read shapes and constants alone" in given.notes[-1]
    values = np.random.default_rng(0).normal(size=(1, 6, 4)).astype(np.float32)
    for content in (given.content, to_bytes(from_bytes(given.content))):
        assert np.array_equal(executed(content, values)[0], executed(path.read_bytes(), values)[0])


def test_settings_that_would_be_lost_are_refused(tmp_path):
    b = Builder()
    x = b.input((2, 3, 4), "float32")
    numbers = b.constant("numbers", [[0, 1], [2, 0]])
    y = b.tensor("y", (2, 2, 4), "float32")
    b.operator("GATHER", [x, numbers], [y], options="GatherOptions", axis=1, batchDims=1)
    with pytest.raises(Unsupported, match="settings of GATHER are not known here"):
        from_bytes(b.write(tmp_path / "m.tflite", [y]).read_bytes())


def test_numbers_that_are_computed_have_an_axis(tmp_path):
    """The largest value of a spectrogram, less 8, is its floor: NPUs have no tensors without axes."""
    b = Builder()
    x, eight = b.input((1, 2, 3, 4), "float32"), b.tensor("eight", (), "float32", np.float32(0.8))
    axes = b.constant("axes", [0, 1, 2, 3])
    top = b.operator("REDUCE_MAX", [x, axes], [b.tensor("top", (), "float32")], options="ReducerOptions")
    floor = b.unary("TANH", b.binary("SUB", top, eight, "floor", (), "float32"), "bent", (), "float32")
    y = b.binary("MAXIMUM", x, floor, "y", (1, 2, 3, 4), "float32")
    kept = b.unary("ABS", top, "number", (), "float32")
    content = b.write(tmp_path / "m.tflite", [y, kept]).read_bytes()
    whole = from_bytes(content)
    assert numbers_with_axes(whole) == whole, "a number that is a result stays one, and what it is made of"
    b.write(tmp_path / "m.tflite", [y])
    content = (tmp_path / "m.tflite").read_bytes()
    graph = numbers_with_axes(from_bytes(content))
    assert all(tensor.shape for tensor in graph.tensors.values() if tensor.data is None)
    x = np.random.default_rng(0).normal(size=(1, 2, 3, 4)).astype(np.float32)
    [ours], [theirs] = executed(to_bytes(graph), x), executed(content, x)
    assert np.array_equal(ours, theirs)


def test_a_question_about_a_number_has_an_axis(tmp_path):
    """A choice by the mean of a signal: a RESHAPE to no axes has an empty shape, which Vela refuses to read."""
    b = Builder()
    x, half = b.input((1, 6), "float32"), b.tensor("half", (), "float32", np.float32(0.1))
    mean, number = b.tensor("mean", (1,), "float32"), b.tensor("number", (), "float32")
    b.operator("MEAN", [x, b.constant("axes", [1])], [mean], options="ReducerOptions")
    b.operator("RESHAPE", [mean, b.constant("shape", np.zeros(0))], [number])
    high = b.operator("GREATER", [number, half], [b.tensor("high", (), "bool")])
    y = b.operator("SELECT_V2", [high, x, number], [b.tensor("y", (1, 6), "float32")])
    content = b.write(tmp_path / "m.tflite", [y]).read_bytes()
    graph = numbers_with_axes(from_bytes(content))
    assert all(tensor.shape for tensor in graph.tensors.values() if tensor.data is None)
    for values in np.random.default_rng(0).normal(size=(4, 1, 6)).astype(np.float32):
        [ours], [theirs] = executed(to_bytes(graph), values), executed(content, values)
        assert np.array_equal(ours, theirs)


@pytest.mark.parametrize(
    ("factor", "kinds"), [(1 / 6, ["MEAN"]), (0.5, ["MEAN", "MUL"]), (None, ["MEAN", "MUL", "TANH"])]
)
def test_a_sum_is_a_mean_times_a_number_which_a_product_behind_it_takes(tmp_path, factor, kinds):
    b = Builder()
    x = b.tensor("x", (1, 2, 3, 4), "float32", scale=None)
    b.inputs = [x]
    total = b.tensor("total", (1, 1, 1, 4), "float32", scale=None)
    b.operator("SUM", [x, b.constant("axes", [1, -2])], [total], options="ReducerOptions", keepDims=True)
    if factor is None:
        y = b.unary("TANH", total, "y", (1, 1, 1, 4), "float32")
    else:
        y = b.binary("MUL", total, b.constant("factor", [factor], "float32"), "y", (1, 1, 1, 4), "float32")
    content = b.write(tmp_path / "m.tflite", [y]).read_bytes()
    graph = means_for_sums(from_bytes(content))
    assert [operator.kind for operator in without_idle(graph).operators] == kinds
    x = np.random.default_rng(0).normal(size=(1, 2, 3, 4)).astype(np.float32)
    [ours], [theirs] = executed(to_bytes(graph), x), executed(content, x)
    np.testing.assert_allclose(ours, theirs, atol=1e-6)
