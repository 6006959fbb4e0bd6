"""Logarithms of spectra in 16 bits: what is quiet a thousand times over is not lost."""

from __future__ import annotations

import numpy as np
import pytest
from compiled import compare
from lowered_nets import by_litert, by_onnx, decibels, net, quantised
from onnx import helper

from anynpu.firmware.generator import findings
from anynpu.lowering.levels import arguments
from anynpu.lowering.lower import lower
from anynpu.lowering.read import from_bytes
from anynpu.runtime.tflite_file import float_operators, read_model
from anynpu.targets.tflite import for_npu

node = helper.make_node


def waves(count: int = 24, length: int = 512) -> dict[str, np.ndarray]:
    """Returns tones as 16-bit recordings have them, some a thousand times quieter than others."""
    rng, at = np.random.default_rng(2), np.arange(length)
    tones = rng.uniform(0.01, 0.4, (count, 3))
    whole = np.sin(2 * np.pi * tones[..., None] * at + rng.uniform(0, 6, (count, 3, 1))).sum(axis=1)
    loud = 10.0 ** rng.uniform(-3, 0, (count, 1))
    heard = loud * (whole + 1e-3 * rng.normal(size=(count, length)))
    return {"x": (np.rint(heard * 16384) / 16384).reshape(count, 1, length).astype(np.float32)}


def spectrum(*behind, size: int = 64, **constants):
    """Returns the power of a spectrum, and what comes behind it."""
    turns = 2 * np.pi * np.arange(size // 2 + 1)[:, None] * np.arange(size) / size
    window = np.hanning(size + 1)[:size]
    constants |= {"cos": (np.cos(turns) * window)[:, None], "sin": (np.sin(turns) * window)[:, None]}
    nodes = [
        node("Conv", ["x", "cos"], ["re"], strides=[32]),
        node("Conv", ["x", "sin"], ["im"], strides=[32]),
        node("Mul", ["re", "re"], ["re2"]),
        node("Mul", ["im", "im"], ["im2"]),
        node("Add", ["re2", "im2"], ["power"]),
        *behind,
    ]
    stored = {name: np.asarray(each, np.float32) for name, each in constants.items()}
    return net(nodes, {"x": (1, 1, 512)}, stored)


MEL = np.maximum(0, 1 - np.abs(np.arange(33) - np.linspace(1, 31, 12)[:, None]) / 2.8)
SPECTRA = {
    "power": (spectrum(node("Add", ["power", "eps"], ["p"]), node("Log", ["p"], ["y"]), eps=1e-6), 40),
    "mel": (
        spectrum(
            node("MatMul", ["mel", "power"], ["m"]),
            node("Clip", ["m", "eps"], ["p"]),
            node("Log", ["p"], ["y"]),
            mel=MEL,
            eps=1e-6,
        ),
        40,
    ),
    "size": (
        spectrum(
            node("Sqrt", ["power"], ["size"]),
            node("Mul", ["size", "far"], ["s"]),
            node("Add", ["s", "one"], ["p"]),
            node("Log", ["p"], ["y"]),
            far=2.0**16,
            one=1.0,
        ),
        18,
    ),
}


@pytest.mark.parametrize("what", SPECTRA)
@pytest.mark.parametrize("wide", ["int16", "wide_tensors"])
def test_the_logarithm_of_a_spectrum_holds_what_is_quiet(what, wide, tmp_path):
    """In one piece all but the loudest tenth of it is the same number: from -3 to 9 dB."""
    (model, least), data = SPECTRA[what], waves()
    [logarithm] = [each.outputs[0] for each in lower(model).operators if each.kind == "LOG"]
    plan = {"activations": "int16"} if wide == "int16" else {"wide_tensors": ("x", logarithm)}
    content = quantised(model, data, tmp_path, **plan)
    assert not float_operators(read_model(content)) and not findings(tmp_path / "integers.tflite")
    assert decibels(by_onnx(model, data), by_litert(content, data)) > least


def test_a_logarithm_of_few_numbers_is_one_table(tmp_path):
    model = net([node("Sigmoid", ["x"], ["s"]), node("Add", ["s", "half"], ["p"]), node("Log", ["p"], ["y"])],
                {"x": (1, 5, 6)}, {"half": np.float32(0.5)})  # fmt: skip
    data = {"x": np.random.default_rng(0).normal(size=(8, 5, 6)).astype(np.float32)}
    content = quantised(model, data, tmp_path, activations="int16")
    assert from_bytes(content).counts()["LOG"] == 1


def test_only_its_own_root_is_the_root_of_a_number(tmp_path):
    """A product with the inverse root of something else is no root."""
    nodes = [
        node("Abs", ["x"], ["a"]),
        node("ReduceMean", ["a"], ["m"], keepdims=1, axes=[2]),
        node("Sqrt", ["m"], ["r"]),
        node("Div", ["a", "r"], ["d"]),
        node("Add", ["d", "eps"], ["p"]),
        node("Log", ["p"], ["y"]),
    ]
    model = net(nodes, {"x": (1, 5, 6)}, {"eps": np.float32(1e-3)}, opset=13)
    data = {"x": np.random.default_rng(0).normal(size=(16, 5, 6)).astype(np.float32)}
    content = quantised(model, data, tmp_path, activations="int16")
    assert decibels(by_onnx(model, data), by_litert(content, data)) > 50


LINES = {
    "a sum that may be below its number": (
        [node("Mul", ["x", "third"], ["m"]), node("Add", ["m", "most"], ["p"])],
        {"third": np.float32(0.3), "most": np.float32(0.999)},
    ),
    "terms that cancel": (
        [node("MatMul", ["x", "ones"], ["m"]), node("Abs", ["m"], ["a"]), node("Add", ["a", "eps"], ["p"])],
        {"ones": np.ones((6, 3), np.float32), "eps": np.float32(1e-3)},
    ),
    "a weighted sum of what may be below zero": (
        [node("MatMul", ["x", "ones"], ["m"]), node("Max", ["m", "eps"], ["p"])],
        {"ones": np.ones((6, 3), np.float32), "eps": np.float32(1e-3)},
    ),
}


@pytest.mark.parametrize("what", LINES)
def test_arguments_of_other_kinds_keep_their_values(what, tmp_path):
    nodes, constants = LINES[what]
    model = net([*nodes, node("Log", ["p"], ["y"])], {"x": (1, 5, 6)}, constants)
    data = {"x": np.random.default_rng(0).uniform(-3, 3, (16, 5, 6)).astype(np.float32)}
    content = quantised(model, data, tmp_path, activations="int16")
    assert decibels(by_onnx(model, data), by_litert(content, data)) > 30


def test_what_a_logarithm_is_computed_of_goes_back_to_stored_weights():
    graph = lower(SPECTRA["mel"][0])
    [logarithm] = [each.outputs[0] for each in graph.operators if each.kind == "LOG"]
    kinds = {each.kind for each in graph.operators if each.outputs[0] in arguments(graph, [logarithm])}
    assert {"CONV_2D", "FULLY_CONNECTED", "MUL"} <= kinds
    assert not arguments(graph, [logarithm]) & {*graph.inputs}


@pytest.mark.parametrize("chip", ["ethos-u55-256", "ethos-u85-256"])
@pytest.mark.parametrize("what", SPECTRA)
def test_the_npu_computes_the_levels(what, chip, tmp_path):
    pytest.importorskip("ethosu")
    model, data = SPECTRA[what][0], waves()
    quantised(model, data, tmp_path, activations="int16")
    if (content := for_npu(tmp_path / "float.tflite", chip)) is not None:
        (tmp_path / "float.tflite").write_bytes(content)
    result = compare(tmp_path / "integers.tflite", chip, tmp_path)
    assert result.worst <= 4  # steps of 16 bits: roots and logarithms are tables there
