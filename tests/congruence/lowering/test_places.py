"""What is read and written at places that are computed, as operators that every runtime has."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from lowered_nets import agrees, by_litert, by_onnx, by_tflm, decibels, net, quantised, samples
from onnx import helper

from anynpu.errors import Unsupported
from anynpu.firmware.generator import findings
from anynpu.lowering.lower import lower
from anynpu.lowering.read import from_bytes
from anynpu.lowering.write import to_bytes
from anynpu.targets.vela.constraints import table

node = helper.make_node


def i(*values: int) -> np.ndarray:
    return np.asarray(values, np.int64)


def sampled(**settings) -> onnx.ModelProto:
    nodes = [
        node("Tanh", ["g"], ["t"]),
        node("Mul", ["t", "far"], ["u"]),
        node("GridSample", ["x", "u"], ["y"], **settings),
    ]
    return net(nodes, {"x": (1, 3, 14, 17), "g": (1, 6, 5, 2)}, {"far": np.float32(1.2)})


def folded(size: int, kernel: int, count: int, **settings) -> onnx.ModelProto:
    nodes = [node("Col2Im", ["x", "size", "block"], ["y"], **settings)]
    return net(nodes, {"x": (1, 3 * kernel**2, count**2)}, {"size": i(size, size), "block": i(kernel, kernel)})


def largest(count: int, axis: int = -1, **settings) -> onnx.ModelProto:
    """The largest numbers, and their places as real numbers."""
    nodes = [
        node("TopK", ["x", "k"], ["v", "n"], axis=axis, **settings),
        node("Cast", ["n"], ["r"], to=onnx.TensorProto.FLOAT),
        node("Add", ["v", "r"], ["y"]),
    ]
    return net(nodes, {"x": (1, 5, 12)}, {"k": i(count)})


def best_rows() -> onnx.ModelProto:
    nodes = [
        node("Slice", ["x", "one", "two", "last"], ["a"]),
        node("TopK", ["a", "k"], ["v", "n"], axis=1),
        node("Expand", ["n", "size"], ["m"]),
        node("GatherElements", ["x", "m"], ["y"], axis=1),
    ]
    return net(nodes, {"x": (1, 20, 6)}, {"one": i(1), "two": i(2), "last": i(2), "k": i(4), "size": i(1, 4, 6)})


def written(reduction: str, axis: int = 1) -> onnx.ModelProto:
    """Numbers at places that several of them may share."""
    nodes = [
        node("Abs", ["p"], ["a"]),
        node("Clip", ["a", "", "most"], ["b"]),
        node("Cast", ["b"], ["n"], to=onnx.TensorProto.INT64),
        node("ScatterElements", ["x", "n", "u"], ["y"], axis=axis, reduction=reduction),
    ]
    short = (1, 3, 8) if axis == 1 else (1, 5, 4)
    return net(nodes, {"x": (1, 5, 8), "u": short, "p": short}, {"most": np.float32(3.9)})


def sampled_apart() -> onnx.ModelProto:
    """Two images, each with stored places of its own."""
    nodes = [
        node("Reshape", ["x", "two"], ["a"]),
        node("GridSample", ["a", "grid"], ["b"]),
        node("Reshape", ["b", "one"], ["y"]),
    ]
    grid = np.random.default_rng(8).uniform(-1.1, 1.1, (2, 5, 4, 2)).astype(np.float32)
    return net(nodes, {"x": (1, 6, 8, 9)}, {"two": i(2, 3, 8, 9), "grid": grid, "one": i(1, 6, 5, 4)})


NETS = {
    "samples": sampled(),
    "samples of several images": sampled_apart(),
    "samples within the border": sampled(padding_mode="border", align_corners=1),
    "windows side by side": folded(12, 3, 4, strides=[3, 3]),
    "windows that overlap": folded(9, 3, 5, strides=[2, 2], pads=[1, 1, 1, 1]),
    "windows with gaps": folded(11, 2, 5, strides=[2, 2], dilations=[2, 2]),
    "the best rows": best_rows(),
}
IN_FLOAT = {
    "the nearest samples": sampled(mode="nearest"),
    "the largest": largest(3),
    "the smallest": largest(4, largest=0),
    "the largest of columns": largest(3, axis=1),
    "all in order": largest(12),
    "written": written("none"),
    "written along the last axis": written("none", 2),
    "added": written("add"),
}


@pytest.mark.parametrize("name", [*NETS, *IN_FLOAT])
def test_the_float_file_computes_the_same(name):
    agrees((NETS | IN_FLOAT)[name])


@pytest.mark.parametrize("name", NETS)
def test_integers_stay_close_on_every_runtime(name, tmp_path):
    model = NETS[name]
    data = samples(model, scale=1.0)
    if name == "the best rows":  # scores that 8 bits tell apart
        data["x"][:, :, 1] = np.stack([np.random.default_rng(n).permutation(20) / 5 for n in range(len(data["x"]))])
    least = 16 if "samples" in name else 28  # the places are inputs of 8 bits, and the picture is noise
    content, truth = quantised(model, data, tmp_path), by_onnx(model, data)
    assert decibels(truth, by_litert(content, data)) > least
    assert decibels(truth, by_tflm(content, data)) > least
    assert not findings(tmp_path / "integers.tflite")
    foreign = {operator.kind for operator in from_bytes(content).operators} - {*table("EthosU85")}
    assert not foreign


def test_the_largest_are_found_as_integers(tmp_path):
    """Both the numbers and their places, by operators that microcontrollers have."""
    model = net([node("TopK", ["x", "k"], ["y", "n"])], {"x": (1, 30)}, {"k": i(5)}, outputs=("y",))
    data = samples(model)
    content = quantised(model, data, tmp_path)
    assert "TOPK_V2" not in {operator.kind for operator in from_bytes(content).operators}
    assert decibels(by_onnx(model, data), by_tflm(content, data)) > 38
    assert not findings(tmp_path / "integers.tflite")


def rows_and_columns(floor: bool) -> onnx.ModelProto:
    """The largest of an image as rows and columns, which are added up as one number."""
    real, whole = onnx.TensorProto.FLOAT, onnx.TensorProto.INT64
    nodes = [
        node("TopK", ["x", "k"], ["v", "n"]),
        node("Cast", ["n"], ["a"], to=real),
        node("Div", ["a", "width"], ["b"]),
        *([node("Floor", ["b"], ["c"])] if floor else ()),
        node("Cast", ["c" if floor else "b"], ["row"], to=whole),
        node("Mod", ["n", "wide"], ["column"]),
        node("Mul", ["row", "ten"], ["d"]),
        node("Add", ["d", "column"], ["e"]),
        node("Cast", ["e"], ["y"], to=real),
    ]
    constants = {"k": i(5), "width": np.float32(7), "wide": np.asarray(7), "ten": np.asarray(10)}
    return net(nodes, {"x": (1, 35)}, constants)


@pytest.mark.parametrize("floor", [True, False])
def test_places_are_taken_apart_as_whole_numbers(floor, tmp_path):
    """By operators that TFLite-Micro and the generated C have, and on every runtime the same."""
    model = rows_and_columns(floor)
    order = np.random.default_rng(3)
    data = {"x": np.stack([order.permutation(35) for _ in range(8)]).astype(np.float32) / 9}
    content, truth = quantised(model, data, tmp_path), by_onnx(model, data)
    kinds = {operator.kind for operator in from_bytes(content).operators}
    assert "DIV" in kinds and not kinds & {"FLOOR", "FLOOR_MOD", "FLOOR_DIV"}
    for found in (by_litert(content, data), by_tflm(content, data)):
        np.testing.assert_array_equal(np.rint(found), truth)
    assert not findings(tmp_path / "integers.tflite")


@pytest.mark.parametrize("op", ["Floor", "Ceil", "Cast"])
def test_a_quotient_that_is_rounded_is_no_product(op):
    """Multiples of 41: times its stored inverse they are below whole numbers."""
    to = {"to": onnx.TensorProto.INT32} if op == "Cast" else {}
    nodes = [node("Div", ["x", "d"], ["q"]), node(op, ["q"], ["r"], **to), node("Cast", ["r"], ["y"], to=1)]
    model = net(nodes, {"x": (1, 200)}, {"d": np.float32(41)})
    data = {"x": np.arange(200, dtype=np.float32)[None] * 41}
    np.testing.assert_array_equal(by_litert(to_bytes(lower(model)), data), by_onnx(model, data))


def placed() -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
    """The places of the largest, of rows that span much, little and nothing."""
    nodes = [node("TopK", ["x", "k"], ["v", "n"]), node("Cast", ["n"], ["y"], to=onnx.TensorProto.FLOAT)]
    model = net(nodes, {"x": (1, 3, 12)}, {"k": i(5)})
    data = samples(model)
    data["x"][:, 0] = np.stack([np.random.default_rng(n).permutation(12) for n in range(len(data["x"]))]) / 4
    data["x"][:, 1], data["x"][:, 2] = 0.001 * data["x"][:, 0], 0.7
    data["x"][0] = 0.0
    return model, data


def test_no_place_is_named_twice_where_numbers_are_equal():
    model, data = placed()
    content = to_bytes(lower(model))
    for truth, ours in zip(by_onnx(model, data), by_litert(content, data), strict=True):
        assert np.array_equal(truth, ours)


def test_no_place_is_named_twice_where_numbers_are_equal_by_rounding(tmp_path):
    model, data = placed()
    content = quantised(model, data, tmp_path)
    varied = {"x": data["x"][1:]}
    for found in by_tflm(content, varied):
        assert all(len({*row}) == 5 for row in np.rint(found).reshape(-1, 5))


def test_many_of_the_largest_are_one_operator():
    assert lower(net([node("TopK", ["x", "k"], ["y", "n"])], {"x": (1, 300)}, {"k": i(100)})).counts()["TOPK_V2"] == 1


FUNCTIONS = {"Asin": 0.3, "Acos": 0.3, "Atan": 2.0, "Round": 3.0}


@pytest.mark.parametrize("op", FUNCTIONS)
def test_functions_as_tables(op, tmp_path):
    nodes = [node("Tanh", ["x"], ["t"]), node("Mul", ["t", "far"], ["u"]), node(op, ["u"], ["y"])]
    model = net(nodes, {"x": (1, 40)}, {"far": np.float32(FUNCTIONS[op])})
    agrees(model)
    data = samples(model)
    content, truth = quantised(model, data, tmp_path, tables=True), by_onnx(model, data)
    np.testing.assert_array_equal(by_tflm(content, data), by_litert(content, data))
    if op == "Round":  # whole numbers but where a step more is the next one
        assert np.mean(np.abs(truth - by_tflm(content, data)) < 0.1) > 0.95
    else:
        assert decibels(truth, by_tflm(content, data)) > 30


def test_halves_are_rounded_to_even_numbers():
    model = net([node("Round", ["x"], ["y"])], {"x": (1, 8)})
    agrees(model, {"x": np.asarray([[-2.5, -1.5, -0.5, 0.5, 1.5, 2.5, 3.5, 0.49]], np.float32)})


@pytest.mark.parametrize("op", ["ReduceL1", "ReduceLogSumExp", "Softsign"])
def test_functions_of_later_opsets_are_written_out(op):
    settings = {} if op == "Softsign" else {"axes": [1], "keepdims": 1}
    agrees(net([node(op, ["x"], ["y"], **settings)], {"x": (1, 6, 5)}, opset=13))


def test_truth_as_a_number_stays_whole(tmp_path):
    """One-hot rows, as exporters write them: compared, cast to whole numbers, then to real ones."""
    nodes = [
        node("ArgMax", ["x"], ["n"], axis=2, keepdims=1),
        node("Equal", ["n", "places"], ["e"]),
        node("Cast", ["e"], ["w"], to=onnx.TensorProto.INT64),
        node("Cast", ["w"], ["r"], to=onnx.TensorProto.FLOAT),
        node("Mul", ["r", "x"], ["y"]),
    ]
    model = net(nodes, {"x": (1, 4, 7)}, {"places": np.arange(7)})
    agrees(model)
    content = quantised(model, samples(model), tmp_path)
    assert "float32" not in {tensor.dtype for tensor in from_bytes(content).tensors.values()}


def test_the_smallest_place_is_found_in_8_bits(tmp_path):
    nodes = [node("ArgMin", ["x"], ["n"], axis=1), node("Gather", ["rows", "n"], ["y"])]
    model = net(nodes, {"x": (1, 9)}, {"rows": np.random.default_rng(3).normal(size=(9, 4)).astype(np.float32)})
    data = samples(model)
    content = quantised(model, data, tmp_path)
    assert "float32" not in {tensor.dtype for tensor in from_bytes(content).tensors.values()}
    assert decibels(by_onnx(model, data), by_tflm(content, data)) > 30


@pytest.mark.parametrize(("kind", "most"), [(onnx.TensorProto.UINT8, 255), (onnx.TensorProto.INT64, 1)])
def test_whole_numbers_that_are_fed_become_real_without_a_float(kind, most, tmp_path):
    """The bytes of a picture, and the mask of a text, which an exporter gives another axis first."""
    nodes = [
        node("Unsqueeze", ["x", "axis"], ["u"]),
        node("Cast", ["u"], ["r"], to=onnx.TensorProto.FLOAT),
        node("Mul", ["r", "weights"], ["y"]),
    ]
    weights = np.random.default_rng(5).normal(size=(1, 12, 3)).astype(np.float32)
    model = net(nodes, {"x": (1, 12)}, {"axis": i(2), "weights": weights})
    model.graph.input[0].type.tensor_type.elem_type = kind
    del model.graph.value_info[:]
    model = onnx.shape_inference.infer_shapes(model)
    data = {
        "x": np.random.default_rng(6).integers(0, most + 1, (8, 12)).astype(onnx.helper.tensor_dtype_to_np_dtype(kind))
    }
    truth = by_onnx(model, data)
    narrow = {"x": data["x"].astype(np.int32) if most == 1 else data["x"]}
    content = quantised(model, narrow, tmp_path)
    kinds = {operator.kind for operator in from_bytes(content).operators}
    assert kinds - {"CAST", "TRANSPOSE"} == {"QUANTIZE", "RESHAPE", "MUL"}
    assert "float32" not in {tensor.dtype for tensor in from_bytes(content).tensors.values()}
    assert decibels(truth, by_litert(content, narrow)) > 30
    np.testing.assert_array_equal(by_tflm(content, narrow), by_litert(content, narrow))
    assert not findings(tmp_path / "integers.tflite")


def test_the_bytes_of_a_picture_are_moved_as_what_they_stand_for(tmp_path):
    """A picture as libraries load it: rows, columns, channels, turned and its channels in the other order."""
    nodes = [
        node("Transpose", ["x"], ["t"], perm=[0, 3, 1, 2]),
        node("Gather", ["t", "other"], ["o"], axis=1),
        node("Cast", ["o"], ["r"], to=onnx.TensorProto.FLOAT),
        node("Div", ["r", "most"], ["d"]),
        node("Conv", ["d", "weights"], ["y"]),
    ]
    weights = np.random.default_rng(5).normal(size=(4, 3, 3, 3)).astype(np.float32)
    constants = {"other": i(2, 1, 0), "most": np.float32(255), "weights": weights}
    model = net(nodes, {"x": (1, 9, 7, 3)}, constants)
    model.graph.input[0].type.tensor_type.elem_type = onnx.TensorProto.UINT8
    del model.graph.value_info[:]
    model = onnx.shape_inference.infer_shapes(model)
    data = {"x": np.random.default_rng(6).integers(0, 256, (8, 9, 7, 3)).astype(np.uint8)}
    content = quantised(model, data, tmp_path)
    stored = from_bytes(content)
    assert stored.operators[0].kind == "QUANTIZE"
    assert {tensor.dtype for tensor in stored.tensors.values()} <= {"uint8", "int8", "int32"}
    assert decibels(by_onnx(model, data), by_litert(content, data)) > 30
    np.testing.assert_array_equal(by_tflm(content, data), by_litert(content, data))
    assert not findings(tmp_path / "integers.tflite")


def test_a_refusal_says_what_form_is_written_in_others():
    model = net([node("GridSample", ["x", "g"], ["y"])], {"x": (1, 3, 120, 160), "g": (1, 112, 112, 2)})
    with pytest.raises(Unsupported, match="GridSample has no TFLite form with these settings; what can be lowered"):
        lower(model)
