"""Training of nets whose factors become part of weights on the way to TFLite, and whose tensors are read in two types.

The file must hold what was trained, and the student must compute what the file does."""

from __future__ import annotations

from functools import partial

import numpy as np
import onnx
import pytest
from ai_edge_litert.interpreter import Interpreter
from onnx import TensorProto, helper, numpy_helper

import anynpu
from anynpu.artifact import Artifact
from anynpu.errors import Unsupported
from anynpu.pipeline import training
from anynpu.targets.roundings import Weighted, factors_of
from anynpu.training.fit import Settings
from anynpu.training.record import read_record
from anynpu.training.student import Student

torch = pytest.importorskip("torch")

NODE = helper.make_node
COUNT = 80


def drawn(**shapes):
    return {name: np.random.default_rng(at).normal(0, 0.4, shape).astype(np.float32)
            for at, (name, shape) in enumerate(shapes.items())}  # fmt: skip


def model(nodes, shape, stored) -> onnx.ModelProto:
    value = partial(helper.make_tensor_value_info, elem_type=TensorProto.FLOAT)
    tensors = [numpy_helper.from_array(np.asarray(array), name) for name, array in stored.items()]
    graph = helper.make_graph(nodes, "g", [value("x", shape=shape)], [value("y", shape=None)], tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)


def block(scale, shift) -> onnx.ModelProto:
    """Two normalisations in front of dense layers, rows of them between, with a sum around each."""
    nodes = [
        NODE("LayerNormalization", ["x", "scale", "shift"], ["n"], axis=-1),
        NODE("Reshape", ["n", "rows"], ["r"]),
        NODE("Gemm", ["r", "w1", "b1"], ["d"]),
        NODE("Gelu", ["d"], ["g"]),
        NODE("Gemm", ["g", "w2", "b2"], ["e"], transB=1),
        NODE("Reshape", ["e", "whole"], ["f"]),
        NODE("Add", ["f", "x"], ["s"]),
        NODE("LayerNormalization", ["s", "scale", "shift"], ["m"], axis=-1),
        NODE("MatMul", ["m", "w3"], ["h"]),
        NODE("Add", ["h", "b3"], ["y"]),
    ]
    stored = drawn(w1=(8, 16), b1=(16,), w2=(8, 16), b2=(8,), w3=(8, 4), b3=(4,))
    stored |= {"rows": np.asarray([6, 8]), "whole": np.asarray([1, 6, 8])}
    return model(nodes, [1, 6, 8], stored | {"scale": np.float32(scale), "shift": np.float32(shift)})


def scaled() -> onnx.ModelProto:
    """Products with one number for each channel behind a convolution and before the next, and one behind all."""
    nodes = [
        NODE("Conv", ["x", "w1", "b1"], ["a"], pads=[1] * 4),
        NODE("Mul", ["a", "behind"], ["b"]),
        NODE("Relu", ["b"], ["c"]),
        NODE("Mul", ["c", "before"], ["d"]),
        NODE("Conv", ["d", "w2", "b2"], ["e"]),
        NODE("Relu", ["e"], ["f"]),
        NODE("Conv", ["f", "w3", "b3"], ["g"], group=6, pads=[1] * 4),
        NODE("Mul", ["g", "half"], ["y"]),
    ]
    stored = drawn(w1=(6, 3, 3, 3), b1=(6,), w2=(6, 6, 1, 1), b2=(6,), w3=(6, 1, 3, 3), b3=(6,))
    stored |= {"behind": np.linspace(-1, 2, 6, dtype=np.float32).reshape(6, 1, 1), "half": np.float32(0.5)}
    return model(nodes, [1, 3, 8, 8], stored | {"before": np.linspace(0.2, 3, 6, dtype=np.float32).reshape(1, 6, 1, 1)})


EVEN, UNEVEN = np.ones(8), np.linspace(-0.7, 2, 8)
NETS = {
    "normalisations as they begin": (lambda: block(EVEN, np.zeros(8)), 1.0),
    "normalisations that were learnt": (lambda: block(UNEVEN, np.linspace(0.5, -0.5, 8)), 1.0),
    "rows from very small to large": (lambda: block(UNEVEN, np.zeros(8)), np.geomspace(0.03, 10, 6)[:, None]),
    "products around convolutions": (scaled, 1.0),
}


@pytest.mark.parametrize("name", NETS)
def test_the_file_computes_what_was_trained(name, tmp_path, monkeypatch):
    made, loudness = NETS[name]
    net = made()
    monkeypatch.setattr(training, "Settings", partial(Settings, epochs=2))
    shape = [dim.dim_value for dim in net.graph.input[0].type.tensor_type.shape.dim]
    data = (np.random.default_rng(9).normal(0, 1, (COUNT, *shape[1:])) * loudness).astype(np.float32)
    cache = tmp_path / "cache"
    result = anynpu.build(net, "tflite", {"x": data}, output=tmp_path / "out", cache_dir=cache, qat=True, min_sqnr=0.0)
    (chip,) = result.record.chips
    assert chip.error is None, chip.error
    assert any("trained by the float model" in note for note in result.record.notes)

    store = [Artifact.open(path.parent) for path in (cache / "store").glob("*/*/manifest.json")]
    learnt = [each for each in store if read_record(each.path) is not None]
    (trained,), (compiled,) = ([each for each in learnt if each.manifest.format == kind] for kind in ("onnx", "tflite"))
    scheme = read_record(trained.path).scheme
    assert any(each.factors for each in scheme.weights.values()) == (name != "normalisations as they begin")

    # The student on the trained weights, beside LiteRT on the file: apart by a few roundings, not by another range.
    student = Student(onnx.load(trained.main), scheme)
    with torch.no_grad():
        answers = np.stack([student.module(torch.from_numpy(row[None])).numpy()[0] for row in data[:20]])
    interpreter = Interpreter(str(compiled.main), num_threads=1)
    interpreter.allocate_tensors()
    (given,), (wanted,) = interpreter.get_input_details(), interpreter.get_output_details()
    (step, zero), (scale, point) = given["quantization"], wanted["quantization"]
    got = []
    for row in data[:20]:
        row = row if len(row.shape) < 3 or tuple(given["shape"][1:]) == row.shape else row.transpose(1, 2, 0)
        integers = np.clip(np.rint(row / step) + zero, -128, 127).astype(np.int8)
        interpreter.set_tensor(given["index"], integers[None])
        interpreter.invoke()
        got.append((interpreter.get_tensor(wanted["index"])[0].astype(np.float32) - point) * scale)
    got = np.stack(got)
    got = got if got.shape == answers.shape else got.transpose(0, 3, 1, 2)
    assert 10 * np.log10(np.square(answers).mean() / np.square(answers - got).mean()) > 28


def test_factors_are_those_of_outputs_and_inputs():
    draw = np.random.default_rng(2)
    weights = draw.normal(size=(5, 7)).astype(np.float32)
    outputs, inputs = draw.normal(size=(5, 1)), draw.normal(size=(1, 7))
    inputs[0, 3] = 0
    for axis in (0, 1):
        layer = Weighted("w", weights.shape, axis, "y")
        for by in (outputs, inputs, outputs * inputs):
            lowered = (weights * by).astype(np.float32)
            given = weights if axis == 0 else weights.T
            product = np.ones((1, 1))
            for each in factors_of(layer, given, lowered):
                product = product * np.reshape(each.values, [-1 if at == each.axis else 1 for at in (0, 1)])
            np.testing.assert_allclose(given * product, lowered if axis == 0 else lowered.T, rtol=1e-3, atol=1e-5)
    assert factors_of(Weighted("w", (5, 7), 0, "y"), weights, weights[:, ::-1].copy()) == ()
    with pytest.raises(Unsupported, match="the weights w become others before they are rounded"):
        factors_of(Weighted("w", (5, 7), 0, "y"), weights, draw.normal(size=(5, 7)).astype(np.float32))
