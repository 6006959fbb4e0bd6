"""Models of other real types in float32: what they feed, store and compute."""

from __future__ import annotations

import numpy as np
import onnxruntime
import pytest
from graph_nets import parse, run, weights
from onnx import TensorProto, helper, numpy_helper

from anynpu.errors import IntegrityError
from anynpu.graph.precision import in_float32, rounding
from anynpu.source.load import ModelSource
from anynpu.source.original import read_original

NET = """g (KIND[1,3,8,8] x) => (KIND[1,4,8,8] y) {
    c = Conv<pads=[1,1,1,1]>(x, w)
    m = Mul(c, half)
    f = Cast<to=1>(m)
    r = Relu(f)
    y = Cast<to=CODE>(r)
}"""


def net(kind: str, code: int):
    model = parse(NET.replace("KIND", kind).replace("CODE", str(code)))
    dtype = "float16" if code == TensorProto.FLOAT16 else "float64"
    half = numpy_helper.from_array(np.asarray(0.5, dtype))
    model.graph.node.insert(0, helper.make_node("Constant", [], ["half"], value=half))
    model.graph.initializer.append(numpy_helper.from_array(weights(4, 3, 3, 3).astype(dtype), "w"))
    return model


def test_half_precision_becomes_float32():
    model = net("float16", TensorProto.FLOAT16)
    result, notes = in_float32(model)
    assert notes == ("the file computes in float16: the float model that counts is the same in float32",)
    x = weights(1, 3, 8, 8)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    truth = session.run(None, {"x": x.astype(np.float16)})[0]
    ours = run(result, x)[0]
    assert ours.dtype == np.float32 and np.allclose(ours, truth, atol=0.02)


def test_double_becomes_float32_where_the_model_reads_or_gives_it():
    result, _ = in_float32(net("double", TensorProto.DOUBLE))
    assert run(result, weights(1, 3, 8, 8))[0].dtype == np.float32


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_other_models_stay_as_they_are(dtype):
    text = "g (float[1,4] x) => (float[1,4] y) { a = Cast<to=11>(x) b = Mul(a, w) y = Cast<to=1>(b) }"
    model = parse(text)
    model.graph.initializer.append(numpy_helper.from_array(np.ones(4, dtype), "w"))
    assert in_float32(model) == (model, ())


@pytest.mark.parametrize(("kind", "least"), [("float16", 50), ("double", 100)])
def test_the_file_in_its_own_type_is_compared_with_float32(tmp_path, kind, least):
    path = tmp_path / "net.onnx"
    model = parse(f"g ({kind}[1,8] x) => ({kind}[1,4] y) {{ m = MatMul(x, w) y = Tanh(m) }}")
    model.graph.initializer.append(numpy_helper.from_array(weights(8, 4).astype(kind), "w"))
    path.write_bytes(model.SerializeToString())
    original = read_original(ModelSource(str(path)))
    [note] = original.prove(original.graph, []).notes
    words = note.split()
    assert "the file in its own types is" in note and float(words[words.index("dB") - 1]) > least


def test_more_than_rounding_between_them_is_an_error():
    model = net("float16", TensorProto.FLOAT16)
    wrong, _ = in_float32(model)
    tensor = wrong.graph.initializer[0]
    tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor) * np.float32(1.2), tensor.name))
    with pytest.raises(IntegrityError, match=r"14\.\d dB from the file at output 'y': more than rounding"):
        rounding(model, wrong, [{"x": weights(1, 3, 8, 8)}])


def test_numbers_that_overflow_and_types_without_kernels_are_said():
    model = net("float16", TensorProto.FLOAT16)
    [note] = rounding(model, in_float32(model)[0], [{"x": weights(1, 3, 8, 8) * 1e6}])
    assert "no finite numbers" in note
    brain = parse("g (bfloat16[1,4] x) => (bfloat16[1,4] y) { y = Softsign(x) }")
    [note] = rounding(brain, in_float32(brain)[0], [{"x": weights(1, 4)}])
    assert "ONNX Runtime does not run the file in its own types" in note
