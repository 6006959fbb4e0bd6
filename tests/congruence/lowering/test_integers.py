"""The written integers, executed: LiteRT's reference kernels and TFLite-Micro stay close to the float model."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
from lowered_nets import agrees, by_litert, by_onnx, by_tflm, decibels, interpreter, net, one, quantised, samples
from onnx import helper, numpy_helper
from test_float import IMAGE, ONE_NODE, REMAINDERS, f, i

from anynpu.errors import Unsupported
from anynpu.firmware.generator import findings
from anynpu.lowering.integer_file import quantize_file
from anynpu.lowering.lower import lower
from anynpu.lowering.quantise import weight_scales
from anynpu.lowering.read import from_bytes
from anynpu.lowering.write import to_bytes
from anynpu.quantize.calibration import Dataset
from anynpu.quantize.plan import QuantPlan
from anynpu.runtime.tflite_file import external_buffers, float_operators, read_model
from anynpu.targets.quantising import float_notes

# What needs functions that TFLite-Micro has no integer kernel for.
NOT_ON_MICRO = ("gelu", "gelu by tanh", "exp", "elu", "elu of another slope", "erf", "sinh", "cosh", "asinh",
                "mish", "softplus", "celu", "selu", "pool of squares", "log softmax",
                *(f"LogSoftmax over axes from {axis} on" for axis in (1, 2, 3)))  # fmt: skip


# Rounded once as a table; as the operators that LiteRT has, rounded at every step of a long formula.
MANY_STEPS = ("erf", "sinh", "asinh", "mish")


def test_a_function_that_divides_by_what_can_be_zero_is_a_table(tmp_path):
    """The error function as GELU(z) / z: eight bits have a zero, by which LiteRT ends the run."""
    model = one("Erf", (1, 8, 12, 12))
    data = {"x": np.random.default_rng(0).normal(size=(24, 8, 12, 12)).astype(np.float32)}
    content = quantised(model, data, tmp_path)
    assert "DIV" not in {operator.kind for operator in from_bytes(content).operators}
    assert decibels(by_onnx(model, data), by_litert(content, data)) > 30


@pytest.mark.parametrize("name", ONE_NODE)
def test_8_bits(name, tmp_path):
    model = ONE_NODE[name]
    data = samples(model, scale=1.0)
    content, truth = quantised(model, data, tmp_path), by_onnx(model, data)
    kinds = {op.kind for op in from_bytes(content).operators}
    assert "DEQUANTIZE" not in kinds
    if name not in MANY_STEPS:
        assert decibels(truth, by_litert(content, data)) > 24
    if name not in NOT_ON_MICRO:
        assert decibels(truth, by_tflm(content, data)) > 24


@pytest.mark.parametrize("name", NOT_ON_MICRO)
def test_functions_as_tables_run_on_micro(name, tmp_path):
    model = ONE_NODE[name]
    data = samples(model, scale=1.0)
    content, truth = quantised(model, data, tmp_path, tables=True), by_onnx(model, data)
    assert decibels(truth, by_tflm(content, data)) > 24
    np.testing.assert_array_equal(by_tflm(content, data), by_litert(content, data))


def test_a_remainder_is_a_table_that_is_rounded_once(tmp_path):
    model = REMAINDERS["of a number"]
    data = samples(model, scale=1.0)
    content = quantised(model, data, tmp_path)
    graph = from_bytes(content)
    assert graph.counts() == {"ADD": 1, "CAST": 1, "GATHER": 1}
    form = graph.tensors["x"].quantization
    read = form.dequantize(form.quantize(data["x"], "int8")).astype(np.float32)  # beside a wrap, a step is far
    assert (
        np.abs(by_tflm(content, data) - by_onnx(model, {"x": read})).max() <= graph.tensors["y"].quantization.scale[0]
    )
    np.testing.assert_array_equal(by_tflm(content, data), by_litert(content, data))


@pytest.mark.parametrize("name", ["by channel", "of a computed divisor"])
def test_other_remainders_are_float_between_integers(name, tmp_path):
    model = REMAINDERS[name]
    data = samples(model, scale=1.0)
    content, truth = quantised(model, data, tmp_path, activations="int16"), by_onnx(model, data)
    assert decibels(truth, by_litert(content, data)) > 30
    np.testing.assert_array_equal(by_tflm(content, data), by_litert(content, data))


def test_an_operator_without_integers_stays_float_and_is_named(tmp_path):
    model = net([helper.make_node("Pow", ["x", "e"], ["y"])], {"x": (1, 12), "e": (1, 12)})
    data = {name: np.abs(array) for name, array in samples(model, scale=0.5).items()}
    floating, result, record = (tmp_path / name for name in ("f.tflite", "i.tflite", "quantisation.json"))
    floating.write_bytes(to_bytes(lower(model)))
    figures = quantize_file(floating, Dataset(data, None, "test"), QuantPlan(), result)
    assert [item["operator"] for item in figures["float_operators"]] == ["POW"]
    kept = json.loads(record.read_text())
    assert kept["tensors"]["y"] == {"dtype": "float32"}
    assert kept["operators"] == {"y": {"computes": "float32", "kind": "POW"}}
    assert decibels(by_onnx(model, data), by_litert(result.read_bytes(), data)) > 30


def test_a_file_is_quantised_without_onnx(tmp_path):
    """The child that quantises begins without it: its import takes longer than the quantisation of a small model."""
    model = ONE_NODE["gelu"]
    data = samples(model, scale=1.0)
    floating, result = tmp_path / "f.tflite", tmp_path / "i.tflite"
    floating.write_bytes(to_bytes(lower(model)))
    np.savez(tmp_path / "data.npz", **data)
    code = """
import sys
sys.modules["onnx"] = sys.modules["onnxruntime"] = None
from pathlib import Path
import numpy as np
import anynpu.targets.tflite
from anynpu.lowering.integer_file import quantize_file
from anynpu.quantize.calibration import Dataset
from anynpu.quantize.plan import QuantPlan
floating, samples, result = map(Path, sys.argv[1:])
quantize_file(floating, Dataset(dict(np.load(samples)), None, "test"), QuantPlan(), result)
"""
    subprocess.run([sys.executable, "-c", code, floating, tmp_path / "data.npz", result], check=True)
    assert result.read_bytes() == quantised(model, data, tmp_path)


def test_a_softmax_over_hundreds_of_places_keeps_its_bits(tmp_path):
    nodes = [
        helper.make_node("Softmax", ["x"], ["p"], axis=-1),
        helper.make_node("MatMul", ["p", "v"], ["y"]),
    ]
    model = net(nodes, {"x": (1, 4, 300)}, {"v": f(300, 8)})
    data = samples(model, scale=0.3)
    content = quantised(model, data, tmp_path)
    assert decibels(by_onnx(model, data), by_litert(content, data)) > 30
    assert decibels(by_onnx(model, data), by_tflm(content, data)) > 30


@pytest.mark.parametrize("function", ["Softmax", "Sigmoid", "Tanh"])
@pytest.mark.parametrize("size", [1e-7, 1e-12, 1e-35])
def test_scores_that_are_next_to_nothing_keep_micro_alive(function, size, tmp_path):
    """Below a scale of 2^-26 TFLite-Micro aborts in SOFTMAX and takes every input of LOGISTIC for far from zero."""
    model = net([helper.make_node(function, ["x"], ["y"])], {"x": (1, 4, 3)})
    data = samples(model, scale=size)
    content = quantised(model, data, tmp_path)
    graph, truth = from_bytes(content), by_onnx(model, data)
    curves = [each for each in graph.operators if each.kind in ("SOFTMAX", "LOGISTIC", "TANH")]
    assert all(graph.tensors[each.inputs[0]].quantization.scale[0] > 2.0**-26 for each in curves)
    assert np.abs(by_tflm(content, data) - truth).max() < 0.05
    assert np.abs(by_litert(content, data) - truth).max() < 0.05


@pytest.mark.parametrize(("fused", "left"), [("RELU6", "RELU"), ("RELU_N1_TO_1", "NONE")])
@pytest.mark.parametrize("size", [1e-9, 1e-12])
def test_the_end_of_an_activation_that_kernels_cannot_count_to_is_left_out(fused, left, size, tmp_path):
    """Nets that were never trained fade to nothing behind their depthwise layers; LiteRT then refuses RELU6."""
    model = net([helper.make_node("Conv", ["x", "w"], ["y"])], {"x": (1, 3, 8, 8)}, {"w": f(4, 3, 3, 3)})
    data, graph = samples(model, scale=size), lower(model)
    convolution = next(each for each in graph.operators if each.kind == "CONV_2D")
    options = replace(convolution.options, fused_activation_function=fused)
    activated = [replace(each, options=options) if each is convolution else each for each in graph.operators]
    floating, result = tmp_path / "f.tflite", tmp_path / "i.tflite"
    floating.write_bytes(to_bytes(replace(graph, operators=tuple(activated))))
    quantize_file(floating, Dataset(data, None, "test"), QuantPlan(), result)
    content, truth = result.read_bytes(), by_litert(floating.read_bytes(), data)
    (layer,) = (each for each in from_bytes(content).operators if each.kind == "CONV_2D")
    assert layer.options.fused_activation_function == left
    assert decibels(truth, by_litert(content, data)) > 25
    assert decibels(truth, by_tflm(content, data)) > 25


@pytest.mark.parametrize(("function", "size"), [("Sigmoid", 0.05), ("Sigmoid", 0.3), ("Tanh", 1e-5), ("Tanh", 0.05)])
def test_results_within_a_few_steps_of_a_built_in_scale_keep_their_bits(function, size, tmp_path):
    """A detector whose boxes are almost the same, a vocoder that is next to silent."""
    model = net([helper.make_node(function, ["x"], ["y"])], {"x": (1, 16, 9)})
    data = samples(model, scale=size)
    content, truth = quantised(model, data, tmp_path), by_onnx(model, data)
    centre = truth.mean()
    assert decibels(truth - centre, by_litert(content, data) - centre) > 35
    assert decibels(truth - centre, by_tflm(content, data) - centre) > 35


@pytest.mark.parametrize("kind", ["Less", "Greater", "LessOrEqual", "GreaterOrEqual"])
@pytest.mark.parametrize("size", [1e-4, 0.3, 500.0])
@pytest.mark.parametrize("stored", [False, True])
def test_real_numbers_are_compared_as_integers(kind, size, stored, tmp_path):
    """At scales far from 1/256 too, where the kernels' own steps are those of nothing."""
    nodes = [helper.make_node(kind, ["x", "z"], ["c"]), helper.make_node("Where", ["c", "x", "other"], ["y"])]
    constants = {"other": np.float32(-4 * size)}
    model = net(nodes, {"x": (1, 40), **({} if stored else {"z": (1, 40)})}, constants)
    if stored:
        model.graph.initializer.append(numpy_helper.from_array(np.float32(0.4 * size), "z"))
    data = samples(model, scale=size)
    content, truth = quantised(model, data, tmp_path), by_onnx(model, data)
    assert not float_operators(read_model(content))
    (tmp_path / "net.tflite").write_bytes(content)
    assert not findings(tmp_path / "net.tflite")
    for found in (by_litert(content, data), by_tflm(content, data)):
        same = np.abs(found - truth) < 0.1 * size
        assert same.mean() > 0.97  # what lies within one step of the other may be taken for it


def test_a_sum_far_below_what_is_added_keeps_micro_alive(tmp_path):
    """LiteRT and TFLite-Micro abort where the scale of a sum is more than 19 bits below those of its operands."""
    nodes = [helper.make_node("Add", ["x", "much"], ["a"]), helper.make_node("Sub", ["z", "a"], ["y"])]
    model = net(nodes, {"x": (1, 4, 3), "z": (1, 4, 3)}, {"much": np.full((4, 3), 3e6, np.float32)})
    data = samples(model)
    data["z"] = data["x"] + np.float32(3e6) + (np.arange(data["x"].size).reshape(data["x"].shape) % 3).astype("f4") / 4
    content = quantised(model, data, tmp_path)
    for found in (by_litert(content, data), by_tflm(content, data)):
        assert np.abs(found).max() < 3e6 / 64


@pytest.mark.parametrize("size", [1e-35, 1e-7, 6.0])
def test_the_logarithm_of_a_softmax_has_scores_of_any_size(size, tmp_path):
    """A result of LOG_SOFTMAX itself ends at -16, and neither Ethos-U nor C has it."""
    model = net([helper.make_node("LogSoftmax", ["x"], ["y"], axis=-1)], {"x": (1, 4, 50)})
    data = samples(model, scale=size)
    content, truth = quantised(model, data, tmp_path, tables=True), by_onnx(model, data)
    assert decibels(truth, by_tflm(content, data)) > 38
    assert decibels(truth, by_litert(content, data)) > 38


def test_a_token_of_zeros_leaves_the_others_their_bits(tmp_path):
    model = net([helper.make_node("LayerNormalization", ["x", "s"], ["y"], epsilon=1e-12)], {"x": (1, 6, 16)},
                {"s": f(16)})  # fmt: skip
    data = samples(model)
    data["x"][:, 0] = 0.0
    content, truth = quantised(model, data, tmp_path), by_onnx(model, data)
    assert decibels(truth, by_litert(content, data)) > 30
    assert decibels(truth, by_tflm(content, data)) > 30


@pytest.mark.parametrize("span", [2.0, 12.0, 40.0])
def test_rows_of_any_loudness_have_their_inverse_deviation(span, tmp_path):
    """LiteRT has a table of 513 values for it: rows that are far quieter than the loudest need one of their own."""
    nodes = [helper.make_node("LayerNormalization", ["x", "scale", "bias"], ["y"], axis=-1)]
    model = net(nodes, {"x": (1, 12, 32)}, {name: np.ones(32, np.float32) for name in ("scale", "bias")})
    data = samples(model)
    data["x"] *= np.geomspace(1, 1 / span, 12, dtype=np.float32)[None, :, None]
    content, truth = quantised(model, data, tmp_path, activations="int16"), by_onnx(model, data)
    assert decibels(truth, by_litert(content, data)) > 45
    assert decibels(truth, by_tflm(content, data)) > 45


def test_a_residual_token_that_is_small_survives_beside_large_ones(tmp_path):
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["a"]),
        helper.make_node("Add", ["x", "a"], ["b"]),
        helper.make_node("LayerNormalization", ["b", "s"], ["c"]),
        helper.make_node("Slice", ["c", "zero", "one", "one"], ["y"]),
    ]
    constants = {"w": f(16, 16) * 0.1, "s": np.ones(16, np.float32), "zero": i(0), "one": i(1)}
    model = net(nodes, {"x": (1, 6, 16)}, constants)
    data = samples(model)
    data["x"][:, 0] *= 0.1  # the first token, which alone is read
    content = quantised(model, data, tmp_path)
    assert decibels(by_onnx(model, data), by_litert(content, data)) > 18
    assert decibels(by_onnx(model, data), by_tflm(content, data)) > 18


def test_a_layer_norm_that_is_written_out_has_no_division(tmp_path):
    nodes = [
        helper.make_node("ReduceMean", ["x", "last"], ["m"]),
        helper.make_node("Sub", ["x", "m"], ["d"]),
        helper.make_node("Pow", ["d", "two"], ["q"]),
        helper.make_node("ReduceMean", ["q", "last"], ["v"]),
        helper.make_node("Add", ["v", "epsilon"], ["e"]),
        helper.make_node("Sqrt", ["e"], ["r"]),
        helper.make_node("Div", ["d", "r"], ["n"]),
        helper.make_node("Mul", ["n", "s"], ["t"]),
        helper.make_node("Add", ["t", "b"], ["y"]),
    ]
    numbers = {"last": i(-1), "two": np.float32(2), "epsilon": np.float32(1e-5)}
    model = net(nodes, {"x": (1, 6, 16)}, numbers | {"s": f(16), "b": f(16)})
    data = samples(model)
    content = quantised(model, data, tmp_path)
    assert not {"DIV", "SQRT"} & {*from_bytes(content).counts()}
    assert decibels(by_onnx(model, data), by_litert(content, data)) > 30
    assert decibels(by_onnx(model, data), by_tflm(content, data)) > 30


WIDE = ("relu", "grouped", "transposed", "gemm", "matmul", "add of channels", "softmax", "sigmoid", "mean of tokens",
        "pad", "slice", "layer norm", "batch norm", "bilinear", "gather")  # fmt: skip


@pytest.mark.parametrize("name", WIDE)
def test_16_bits(name, tmp_path):
    model = ONE_NODE[name]
    data = samples(model, scale=1.0)
    content = quantised(model, data, tmp_path, activations="int16")
    assert decibels(by_onnx(model, data), by_litert(content, data)) > 38


def test_a_padded_maximum_below_zero_is_exact_to_a_step(tmp_path):
    model = one("MaxPool", (1, 3, 8, 8), kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1])
    data = {name: array - 20 for name, array in samples(model).items()}
    content = quantised(model, data, tmp_path)
    step = from_bytes(content).tensors["y"].quantization.scale[0]
    assert "PADV2" in lower(model).counts()
    assert np.abs(by_onnx(model, data) - by_tflm(content, data)).max() <= step
    assert np.abs(by_onnx(model, data) - by_litert(content, data)).max() <= step


def test_joined_tensors_share_one_scale_and_are_rounded_once(tmp_path):
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["a"]),
        helper.make_node("Conv", ["x", "v"], ["b"]),
        helper.make_node("Concat", ["a", "b", "x"], ["y"], axis=1),
    ]
    model = net(nodes, {"x": IMAGE}, {"w": f(4, 6, 1, 1), "v": 5 * f(3, 6, 1, 1)})
    data = samples(model)
    content = quantised(model, data, tmp_path)
    graph = from_bytes(content)
    (join,) = (op for op in graph.operators if op.kind == "CONCATENATION")
    assert len({graph.tensors[name].quantization for name in (*join.inputs, *join.outputs)}) == 1
    # Only the input, which the convolutions read too, is converted.
    assert graph.counts()["QUANTIZE"] == 1
    assert decibels(by_onnx(model, data), by_tflm(content, data)) > 30


def test_more_tensors_than_micro_joins_at_once(tmp_path):
    names = [f"a{number}" for number in range(23)]
    nodes = [helper.make_node("Mul", ["x", f"c{number}"], [name]) for number, name in enumerate(names)]
    constants = {f"c{number}": np.float32(1.1 + number / 10) for number in range(23)}
    model = net([*nodes, helper.make_node("Concat", names, ["y"], axis=1)], {"x": (1, 2, 3)}, constants)
    data = samples(model)
    content = quantised(model, data, tmp_path)
    # All have one scale from the start: no join of joins converts anything.
    assert "QUANTIZE" not in from_bytes(content).counts()
    assert decibels(by_onnx(model, data), by_tflm(content, data)) > 30


def test_float_borders(tmp_path):
    model = one("Conv", IMAGE, {"w": f(4, 6, 3, 3), "b": f(4)})
    data = samples(model)
    content = quantised(model, data, tmp_path, io="float")
    assert {d["dtype"] for d in interpreter(content).get_input_details()} == {np.float32}
    assert {d["dtype"] for d in interpreter(content).get_output_details()} == {np.float32}
    assert decibels(by_onnx(model, data), by_litert(content, data)) > 30


def test_the_quantisation_is_kept_beside_the_file(tmp_path):
    model = one("Gemm", (1, 12), {"w": f(12, 4), "b": f(4)})
    floating, result, record = (tmp_path / name for name in ("f.tflite", "i.tflite", "quantisation.json"))
    floating.write_bytes(to_bytes(lower(model)))
    data = Dataset(samples(model), None, "test")
    quantize_file(floating, data, QuantPlan(), result)
    tensors = json.loads(record.read_text())["tensors"]
    graph = from_bytes(result.read_bytes())
    for name, form in tensors.items():
        written = graph.tensors[name]
        assert written.dtype == form["dtype"]
        assert list(written.quantization.scale) == pytest.approx(form["scale"])
        assert list(written.quantization.zero_point) == form["zero_point"]
    assert {form["dtype"] for form in tensors.values()} == {"int8", "int32"}


def test_a_file_that_is_written_is_read_the_same():
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["a"], strides=[2, 1], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["a"], ["b"]),
        helper.make_node("Transpose", ["b"], ["c"], perm=[0, 3, 1, 2]),
        helper.make_node("Split", ["c"], ["y", "z"], axis=3, num_outputs=2),
        helper.make_node("Slice", ["z", "s", "e", "a1", "t"], ["u"]),
    ]
    constants = {"w": f(4, 6, 3, 3), "s": i(0), "e": i(9), "a1": i(1), "t": i(2)}
    graph = lower(net(nodes, {"x": IMAGE}, constants, outputs=("y", "u")))
    again = from_bytes(to_bytes(graph))
    assert (again.operators, again.inputs, again.outputs) == (graph.operators, graph.inputs, graph.outputs)
    assert again.tensors == graph.tensors
    for name, tensor in graph.tensors.items():
        np.testing.assert_array_equal(again.tensors[name].data, tensor.data)


def test_weights_leave_room_for_their_bias():
    scales = weight_scales(np.asarray([[1e-9, 0], [0, 0], [1, 2]]), 0, np.asarray([1e3, 1.0, 0.0]), source=0.1)
    assert np.all(np.abs([1e3, 1.0, 0.0]) / (0.1 * scales) <= 2**30 * 1.001)
    assert scales[2] == pytest.approx(2 / 127)


def test_a_mask_of_the_lowest_number_is_one_that_integers_hold(tmp_path):
    nodes = [helper.make_node("Add", ["x", "mask"], ["a"]), helper.make_node("Softmax", ["a"], ["y"], axis=-1)]
    mask = np.where(np.tri(6), 0.0, np.finfo(np.float32).min).astype(np.float32)
    model = net(nodes, {"x": (1, 6, 6)}, {"mask": mask})
    scales = [t.quantization.scale[0] for t in from_bytes(quantised(model, samples(model), tmp_path)).tensors.values()
              if t.quantization is not None]  # fmt: skip
    assert max(scales) < 100


def by_differences():
    """A layer norm as JAX writes it: the mean of squares less the square of the mean, cut at zero and repeated."""
    nodes = [
        helper.make_node("ReduceSum", ["x", "axis"], ["sum"]),
        helper.make_node("Mul", ["x", "x"], ["square"]),
        helper.make_node("ReduceSum", ["square", "axis"], ["squares"]),
        helper.make_node("Mul", ["sum", "share"], ["mean"]),
        helper.make_node("Mul", ["squares", "share"], ["mean_square"]),
        helper.make_node("Mul", ["mean", "mean"], ["square_mean"]),
        helper.make_node("Sub", ["mean_square", "square_mean"], ["difference"]),
        helper.make_node("Max", ["zero", "difference"], ["variance"]),
        helper.make_node("Expand", ["variance", "size"], ["wide"]),
        helper.make_node("Add", ["wide", "epsilon"], ["above"]),
        helper.make_node("Sqrt", ["above"], ["root"]),
        helper.make_node("Reciprocal", ["root"], ["inverse"]),
        helper.make_node("Sub", ["x", "mean"], ["centred"]),
        helper.make_node("Mul", ["centred", "inverse"], ["y"]),
    ]
    numbers = {"share": np.float32(1 / 24), "zero": np.float32(0), "epsilon": np.float32(1e-6)}
    constants = {name: np.asarray(number) for name, number in numbers.items()}
    constants |= {"axis": np.asarray([2]), "size": np.asarray([1, 10, 24])}
    return net(nodes, {"x": (1, 10, 24)}, constants)


def test_a_hard_swish_of_16_bits_is_a_product(tmp_path):
    """No runtime has a kernel; LiteRT, TFLite-Micro and the generated C have those of the product."""
    model = one("HardSwish", (1, 6, 8, 9))
    data = samples(model, scale=3.0)
    content, truth = quantised(model, data, tmp_path, activations="int16"), by_onnx(model, data)
    assert not float_operators(read_model(content)) and not findings(tmp_path / "integers.tflite")
    assert decibels(truth, by_litert(content, data)) > 70
    np.testing.assert_array_equal(by_tflm(content, data), by_litert(content, data))
    kept = quantised(model, data, tmp_path, activations="int16", float_tensors="y")
    assert "HARD_SWISH" in {operator.kind for operator in from_bytes(kept).operators}


def test_a_vector_shorter_than_calibration_showed_has_length_one(tmp_path):
    nodes = [
        helper.make_node("ReduceL2", ["x", "axis"], ["length"]),
        helper.make_node("Div", ["x", "length"], ["y"]),
    ]
    model = net(nodes, {"x": (1, 10, 24)}, {"axis": np.asarray([2])})
    data = {"x": samples(model, scale=1.0)["x"]}
    content = quantised(model, data, tmp_path)
    shorter = {"x": data["x"] * np.float32(0.5)}
    assert decibels(by_onnx(model, shorter), by_litert(content, shorter)) > 24
    assert decibels(by_onnx(model, shorter), by_tflm(content, shorter)) > 24


def test_a_variance_by_differences_keeps_its_bits(tmp_path):
    model = by_differences()
    data = {"x": samples(model, scale=0.3)["x"] + np.float32(3.0)}
    content, truth = quantised(model, data, tmp_path), by_onnx(model, data)
    kinds = [op.kind for op in from_bytes(content).operators]
    assert "BROADCAST_TO" not in kinds and "DIV" not in kinds and kinds.count("RSQRT") == 1
    assert decibels(truth, by_litert(content, data)) > 24
    assert decibels(truth, by_tflm(content, data)) > 24


def test_a_magnitude_keeps_its_bits(tmp_path):
    nodes = [
        helper.make_node("Mul", ["a", "a"], ["aa"]),
        helper.make_node("Mul", ["b", "b"], ["bb"]),
        helper.make_node("Add", ["aa", "bb"], ["sum"]),
        helper.make_node("Sqrt", ["sum"], ["y"]),
    ]
    model = net(nodes, {"a": (1, 40), "b": (1, 40)})
    data = samples(model, scale=1.0)
    content, truth = quantised(model, data, tmp_path), by_onnx(model, data)
    assert decibels(truth, by_litert(content, data)) > 27
    assert decibels(truth, by_tflm(content, data)) > 27


def _behind_a_loud_input():
    draw = np.random.default_rng(5)
    first, second = (draw.normal(size=size).astype(np.float32) for size in ((4, IMAGE[1], 3, 3), (3, 4, 3, 3)))
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["h"], kernel_shape=[3, 3], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["h"], ["r"]),
        helper.make_node("MaxPool", ["r"], ["p"], kernel_shape=[2, 2], strides=[2, 2]),
        helper.make_node("Conv", ["p", "v"], ["y"], kernel_shape=[3, 3], pads=[1, 1, 1, 1]),
    ]
    return net(nodes, {"x": IMAGE}, {"w": first, "v": second})


@pytest.mark.parametrize(("field", "dtype"), [("wide_tensors", "int16"), ("float_tensors", "float32")])
def test_named_tensors_are_rounded_nowhere(field, dtype, tmp_path):
    model = _behind_a_loud_input()
    data = samples(model, scale=1.0)
    named = quantised(model, data, tmp_path, equalize=False, **{field: ("r",)})
    graph = from_bytes(named)
    last = [operator for operator in graph.operators if operator.kind == "CONV_2D"][-1]
    assert graph.tensors["r"].dtype == dtype
    assert graph.tensors[last.inputs[0]].dtype == dtype
    truth = by_onnx(model, data)
    # With the result's own rounding out of the way.
    plain, both = (quantised(model, data, tmp_path, equalize=False, **{field: each}) for each in (("y",), ("r", "y")))
    assert decibels(truth, by_litert(both, data)) > decibels(truth, by_litert(plain, data)) + 1
    np.testing.assert_allclose(by_tflm(named, data), by_litert(named, data), atol=1e-5)
    notes = float_notes(float_operators(read_model(named)))
    assert ("CONV_2D stays in floating point; it makes r" in notes) == (field == "float_tensors")


def test_a_tensor_whose_operator_has_no_16_bit_kernel_is_refused_by_name(tmp_path):
    model = net([helper.make_node("HardSwish", ["x"], ["h"]), helper.make_node("Abs", ["h"], ["y"])], {"x": (1, 12)})
    with pytest.raises(Unsupported, match="wide_tensors: h: HARD_SWISH has no 16-bit kernel") as caught:
        quantised(model, samples(model), tmp_path, wide_tensors=("h",))
    assert [finding.where for finding in caught.value.findings] == ["h"]


@pytest.mark.parametrize("group", [1, 4])
def test_weights_that_are_fitted_to_their_inputs_lose_less(group, tmp_path):
    nodes = [
        helper.make_node("Conv", ["x", "w", "b"], ["h"], kernel_shape=[3, 3], pads=[1, 1, 1, 1], group=group),
        helper.make_node("Relu", ["h"], ["r"]),
        helper.make_node("GlobalAveragePool", ["r"], ["p"]),
        helper.make_node("Flatten", ["p"], ["l"]),
        helper.make_node("Gemm", ["l", "v", "c"], ["y"], transB=1),
    ]
    draw = np.random.default_rng(7)
    shapes = {"w": (8, 4 // group, 3, 3), "b": (8,), "v": (5, 8), "c": (5,)}
    stored = {name: draw.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}
    model = net(nodes, {"x": (1, 4, 8, 8)}, stored)
    data = {"x": np.cumsum(draw.normal(size=(24, 4, 8, 8)), axis=-1).astype(np.float32)}
    found = []
    for rounding in ("nearest", "fitted"):
        content = quantised(model, data, tmp_path, rounding=rounding, weight_bits=4, equalize=False)
        found.append(decibels(by_onnx(model, data), by_litert(content, data)))
    assert found[1] > found[0]


def test_buffers_lie_inside_the_file_and_are_aligned(tmp_path):
    """TFLite-Micro misreads those behind the flatbuffer, and LiteRT reads them where they are."""
    from ai_edge_litert import schema_py_generated

    model = net([helper.make_node("Gemm", ["x", "w"], ["a"]), helper.make_node("Gemm", ["a", "v", "b"], ["y"])],
                {"x": (1, 16)}, {"w": f(16, 1024), "v": f(1024, 512), "b": f(512)})  # fmt: skip
    content = quantised(model, samples(model, count=2), tmp_path)
    assert external_buffers(content) == 0
    read = schema_py_generated.Model.GetRootAs(content, 0)
    start = np.frombuffer(content, np.uint8).__array_interface__["data"][0]
    buffers = [read.Buffers(number) for number in range(read.BuffersLength())]
    places = [each.DataAsNumpy().__array_interface__["data"][0] - start for each in buffers if each.DataLength()]
    assert len(places) >= 4 and [place % 16 for place in places] == [0] * len(places)


def test_a_stored_matrix_of_a_product_has_one_scale(tmp_path):
    """The kernels of BATCH_MATMUL take the scale of the first channel for all of them."""
    right = f(1, 2, 16, 8)
    right[..., 0] *= 1e-3
    model = one("MatMul", (1, 2, 4, 16), {"w": right})
    data = samples(model)
    content = quantised(model, data, tmp_path)
    assert "BATCH_MATMUL" in from_bytes(content).counts()
    assert decibels(by_onnx(model, data), by_tflm(content, data)) > 30


def test_a_constant_in_front_of_what_is_computed(tmp_path):
    """The class token of a vision transformer stands so."""
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["a"]),
        helper.make_node("Concat", ["token", "a"], ["b"], axis=1),
        helper.make_node("MatMul", ["b", "w"], ["y"]),
    ]
    model = net(nodes, {"x": (1, 3, 16)}, {"w": f(16, 16), "token": f(1, 1, 16)})
    data = samples(model)
    assert decibels(by_onnx(model, data), by_tflm(quantised(model, data, tmp_path), data)) > 30


def test_a_sum_with_zeros_goes_from_the_end_of_a_net_too():
    nodes = [helper.make_node("Tanh", ["x"], ["t"]), helper.make_node("Add", ["t", "zeros"], ["y"])]
    model = net(nodes, {"x": (1, 4, 8)}, {"zeros": np.zeros((1, 1, 8), np.float32)})
    assert lower(model).counts() == {"TANH": 1}
    agrees(model)


def test_a_number_that_is_fed_broadcasts_with_its_axis():
    nodes = [helper.make_node("Reshape", ["k", "none"], ["n"]), helper.make_node("Mul", ["x", "n"], ["y"])]
    model = net(nodes, {"x": (1, 8), "k": (1,)}, {"none": np.zeros(0, np.int64)})
    assert lower(model).counts() == {"MUL": 1}
    agrees(model)


def test_zeros_have_a_scale_that_fits_beside_tiny_numbers(tmp_path):
    """LiteRT ends its process where the scales of a sum are too far apart."""
    nodes = [helper.make_node("Mul", ["x", "tiny"], ["t"]), helper.make_node("Add", ["t", "zeros"], ["y"])]
    constants = {"tiny": np.float32(1e-9), "zeros": np.zeros((1, 4, 8), np.float32)}
    model = net(nodes, {"x": (1, 1, 8)}, constants)
    data = samples(model)
    assert decibels(by_onnx(model, data), by_litert(quantised(model, data, tmp_path), data)) > 35


def test_numbers_without_axes_have_c_kernels(tmp_path):
    nodes = [
        helper.make_node("Reshape", ["k", "none"], ["n"]),
        helper.make_node("Add", ["n", "n"], ["m"]),
        helper.make_node("Reshape", ["m", "one"], ["y"]),
    ]
    model = net(nodes, {"k": (1, 1)}, {"none": np.zeros(0, np.int64), "one": np.ones(1, np.int64)})
    data = samples(model)
    content = quantised(model, data, tmp_path)
    assert not findings(tmp_path / "integers.tflite")
    assert decibels(by_onnx(model, data), by_tflm(content, data)) > 30


@pytest.mark.parametrize("slopes", [(0.0, 0.25, 1.0), (-0.5, 0.25, 2.0)])
@pytest.mark.parametrize("plan", [{"activations": "int16"}, {"wide_tensors": ("a", "y")}])
def test_slopes_of_channels_in_16_bits_are_written_in_others(slopes, plan, tmp_path):
    nodes = [helper.make_node("Conv", ["x", "w"], ["a"]), helper.make_node("PRelu", ["a", "slopes"], ["y"])]
    weights = np.random.default_rng(2).normal(size=(3, 3, 1, 1)).astype(np.float32)
    constants = {"w": weights, "slopes": np.asarray(slopes, np.float32).reshape(3, 1, 1)}
    model = net(nodes, {"x": (1, 3, 6, 5)}, constants)
    data = samples(model)
    content = quantised(model, data, tmp_path, **plan)
    graph = from_bytes(content)
    assert "PRELU" not in graph.counts()
    assert "float32" not in {tensor.dtype for tensor in graph.tensors.values()}
    assert decibels(by_onnx(model, data), by_litert(content, data)) > (45 if "activations" in plan else 35)
    np.testing.assert_array_equal(by_tflm(content, data), by_litert(content, data))
    assert not findings(tmp_path / "integers.tflite")
