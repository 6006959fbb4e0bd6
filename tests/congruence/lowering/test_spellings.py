"""Files of other converters: our reading of their operators computes what LiteRT does with the file itself."""

from __future__ import annotations

import numpy as np
import pytest
from tflite_builder import Builder

from anynpu.errors import Unsupported
from anynpu.lowering.read import from_bytes
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


@pytest.mark.parametrize(
    "net",
    [
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
