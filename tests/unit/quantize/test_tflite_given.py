"""Files that somebody gives us: what they are in words, and everything that is refused, by name."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tflite_builder import Builder, schema

from anynpu.errors import AnyNpuError, ConfigError, IntegrityError, Unsupported
from anynpu.quantize.tflite_given import FLOAT, GIVEN, given_format, read_given, with_shapes
from anynpu.runtime.tflite_file import pack_model, read_model, text

SHAPE = (1, 4, 4, 2)


def net(path: Path, dtype: str = "int8", weights: str | None = None) -> Path:
    b = Builder()
    x = b.input(SHAPE, dtype)
    b.conv(x, "conv", SHAPE, 3, dtype=dtype, weights=weights)
    return b.write(path)


def changed(path: Path, change) -> Path:
    """Writes the file again with its model changed."""
    model = read_model(path.read_bytes())
    change(model)
    path.write_bytes(pack_model(model))
    return path


@pytest.mark.parametrize(
    ("dtype", "weights", "format", "what"),
    [
        ("float32", None, FLOAT, "a float model"),
        ("float32", "int8", FLOAT, "a dynamic-range model (int8 weights, float activations)"),
        ("int8", None, GIVEN, "an int8 model"),
        ("int16", None, GIVEN, "an int16 model"),
        ("uint8", "uint8", GIVEN, "a uint8 model"),
    ],
)
def test_a_file_is_told_what_it_is(tmp_path, dtype, weights, format, what):
    path = net(tmp_path / "m.tflite", dtype, weights)
    given = read_given(path)
    assert (given.format, given.what, given_format(path)) == (format, what, format)


def test_integers_stay_as_they_are_to_the_byte(tmp_path):
    path = net(tmp_path / "m.tflite")
    assert read_given(path).content == path.read_bytes()


def test_a_float_operator_in_an_integer_model_makes_it_mixed(tmp_path):
    b = Builder()
    x = b.input(SHAPE)
    real = b.operator("DEQUANTIZE", [x], [b.tensor("real", SHAPE, "float32")])
    b.unary("TANH", real, "tanh", SHAPE, "float32")
    assert read_given(b.write(tmp_path / "m.tflite")).what == (
        "a mixed model: int8, and 1 of 2 operators in floating point"
    )


@pytest.mark.parametrize("stored", ["float16", "int8"])
def test_stored_weights_become_the_floats_that_they_stand_for(tmp_path, stored):
    b = Builder()
    x = b.input((1, 4), "float32")
    values = np.array([[1, 2, 3, 4], [5, 6, 7, 8]])
    weights = b.tensor("w", values.shape, stored, values, scale=0.5 if stored == "int8" else None)
    real = b.operator("DEQUANTIZE", [weights], [b.tensor("wide", values.shape, "float32")])
    out = b.tensor("out", (1, 2), "float32")
    b.operator("FULLY_CONNECTED", [x, real, -1], [out], options="FullyConnectedOptions")
    given = read_given(b.write(tmp_path / "m.tflite"))
    model = read_model(given.content)
    assert given.what == f"a float model with {stored} weights" and given.same_values
    assert len(model.subgraphs[0].operators) == 1
    wide = next(t for t in model.subgraphs[0].tensors if text(t.name) == "wide")
    held = np.frombuffer(bytes(model.buffers[wide.buffer].data), np.float32).reshape(2, 4)
    assert np.array_equal(held, values * (0.5 if stored == "int8" else 1))


def test_names_that_are_missing_or_taken_are_given_anew(tmp_path):
    path = changed(net(tmp_path / "m.tflite"), lambda m: [setattr(t, "name", b"") for t in m.subgraphs[0].tensors])
    given = read_given(path)
    names = [text(t.name) for t in read_model(given.content).subgraphs[0].tensors]
    assert len({*names}) == len(names) and {"input_0", "output_0", "constant_0"} <= {*names}
    assert given.notes == ("4 tensors have no usable name of their own and were given one",)


def test_an_axis_of_scales_that_a_bias_does_not_have_is_corrected(tmp_path):
    def change(model):
        model.subgraphs[0].tensors[2].quantization.quantizedDimension = 3

    given = read_given(changed(net(tmp_path / "m.tflite"), change))
    assert not given.loads and "1 tensors name an axis" in given.notes[0]
    assert read_model(given.content).subgraphs[0].tensors[2].quantization.quantizedDimension == 0


def custom(name: str):
    def change(model):
        code = model.operatorCodes[0]
        code.builtinCode, code.deprecatedBuiltinCode = schema.BuiltinOperator.CUSTOM, schema.BuiltinOperator.CUSTOM
        code.customCode = name
        model.subgraphs[0].operators[0].builtinOptions = None
        model.subgraphs[0].operators[0].builtinOptionsType = 0

    return change


def kind(name: str):
    def change(model):
        model.operatorCodes[0].builtinCode = getattr(schema.BuiltinOperator, name)
        model.operatorCodes[0].deprecatedBuiltinCode = min(getattr(schema.BuiltinOperator, name), 127)
        model.subgraphs[0].operators[0].builtinOptions = None
        model.subgraphs[0].operators[0].builtinOptionsType = 0

    return change


def of_tensor(index: int, **values):
    return lambda model: [setattr(model.subgraphs[0].tensors[index], key, value) for key, value in values.items()]


def scale(value: float):
    def change(model):
        model.subgraphs[0].tensors[1].quantization.scale = [value]

    return change


def weights(value: float):
    def change(model):
        tensor = model.subgraphs[0].tensors[1]
        count = len(model.buffers[tensor.buffer].data) // 4
        model.buffers[tensor.buffer].data = np.frombuffer(np.full(count, value, np.float32).tobytes(), np.uint8)

    return change


REFUSED = {
    "flex": (custom("FlexErf"), "operator FlexErf needs TensorFlow itself"),
    "vela": (custom("ethos-u"), "compiled by Vela for an Ethos-U already"),
    "coral": (custom("edgetpu-custom-op"), "compiled for a Coral Edge TPU already"),
    "while": (kind("WHILE"), "operator WHILE is control flow"),
    "if": (kind("IF"), "operator IF is control flow"),
    "random": (kind("RANDOM_UNIFORM"), "operator RANDOM_UNIFORM gives other results each time"),
    "variable": (kind("READ_VARIABLE"), "operator READ_VARIABLE keeps state"),
    "state": (of_tensor(0, isVariable=True), "input: keeps its values from one run to the next"),
    "string": (of_tensor(0, type=schema.TensorType.STRING, quantization=None), "input: holds string"),
    "complex": (of_tensor(3, type=schema.TensorType.COMPLEX64, quantization=None), "conv: holds complex64"),
    "initialised": (kind("CALL_ONCE"), "operator CALL_ONCE keeps state"),
    "graphs": (lambda m: m.subgraphs.append(m.subgraphs[0]), "holds 2 graphs"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_nothing_here_can_run_is_refused_by_name(tmp_path, case):
    change, words = REFUSED[case]
    with pytest.raises(Unsupported) as error:
        read_given(changed(net(tmp_path / "m.tflite"), change))
    assert words in error.value.message and error.value.findings


def test_every_obstacle_is_a_finding(tmp_path):
    def change(model):
        of_tensor(0, isVariable=True)(model)
        custom("FlexErf")(model)

    with pytest.raises(Unsupported) as error:
        read_given(changed(net(tmp_path / "m.tflite"), change))
    assert [finding.rule for finding in error.value.findings] == ["flex", "state"]


def without(part: str):
    return lambda model: setattr(model.subgraphs[0], part, [])


DAMAGED = {
    "no operators": ("int8", without("operators"), "the graph has no operators"),
    "no inputs": ("int8", without("inputs"), "the graph has no inputs"),
    "no outputs": ("int8", without("outputs"), "the graph has no outputs"),
    "input is output": ("int8", lambda m: setattr(m.subgraphs[0], "outputs", [0]), "is an input and an output"),
    "scale of zero": ("int8", scale(0.0), "tensor 'conv_w': a quantisation scale must be a finite number"),
    "scale of NaN": ("int8", scale(float("nan")), "tensor 'conv_w': a quantisation scale"),
    "weights of NaN": ("float32", weights(float("nan")), "tensor 'conv_w': holds NaN"),
    "sparse": (
        "int8",
        of_tensor(1, shape=[9, 9, 9, 9], sparsity=schema.SparsityParametersT()),
        "tensor 'conv_w' is stored sparse along axes that it does not have",
    ),
    "too large": ("int8", of_tensor(0, shape=[1, 1 << 20, 1 << 12, 2]), "GiB in one run"),
}


@pytest.mark.parametrize("case", DAMAGED)
def test_what_no_model_holds_is_damage(tmp_path, case):
    dtype, change, words = DAMAGED[case]
    with pytest.raises(IntegrityError) as error:
        read_given(changed(net(tmp_path / "m.tflite", dtype), change))
    assert words in error.value.message and error.value.hint


FOREIGN = {
    "empty": (b"", "the file is empty"),
    "zeros": (bytes(512), "is not a TFLite file"),
    "text": (b"hello " * 100, "not a TFLite file: it looks like text"),
    "page": (b"<!DOCTYPE html><html>404</html>", "it looks like an HTML page"),
    "lfs": (b"version https://git-lfs.github.com/spec/v1\n", "is a git-lfs pointer"),
    "ort": (b"\x1c\0\0\0ORTM" + bytes(64), "an onnxruntime .ort model"),
    "other flatbuffer": (b"\x1c\0\0\0ABCD" + bytes(64), "is not a TFLite file"),
    "only the head": (b"\x1c\0\0\0TFL3", "is a damaged TFLite file"),
    "onnx": (b"\x08\x07\x12\x04test:\x10\n\x06", "is not a TFLite file"),
}


@pytest.mark.parametrize("case", FOREIGN)
def test_other_files_are_named(tmp_path, case):
    content, words = FOREIGN[case]
    path = tmp_path / "m.tflite"
    path.write_bytes(content)
    with pytest.raises(IntegrityError) as error:
        read_given(path)
    assert words in error.value.message


def test_no_cut_and_no_changed_byte_gets_another_error(tmp_path):
    whole = net(tmp_path / "m.tflite").read_bytes()
    rng = np.random.default_rng(0)
    path = tmp_path / "damaged.tflite"
    refused = 0
    for at in range(0, len(whole), max(1, len(whole) // 60)):
        path.write_bytes(whole[:at])
        with pytest.raises(IntegrityError):
            read_given(path)
    for _ in range(150):
        flipped = bytearray(whole)
        flipped[rng.integers(8, len(whole))] ^= 1 << rng.integers(8)
        path.write_bytes(flipped)
        try:
            read_given(path)
        except AnyNpuError:
            refused += 1
    assert refused > 20


def test_open_axes_take_the_shape_that_is_stated(tmp_path):
    b = Builder()
    x = b.input((1, 1, 1, 2), "float32")
    b.unary("TANH", x, "out", (1, 1, 1, 2), "float32")
    path = changed(b.write(tmp_path / "m.tflite"), of_tensor(0, shapeSignature=[-1, -1, -1, 2]))
    model = read_model(with_shapes(read_given(path).content, {"input": (1, 5, 6, 2)}))
    assert [list(t.shape) for t in model.subgraphs[0].tensors] == [[1, 5, 6, 2]] * 2
    with pytest.raises(ConfigError, match=r"does not accept the shape input=1,5,6"):
        with_shapes(net(tmp_path / "n.tflite").read_bytes(), {"input": (1, 5, 6, 7)})
