"""Models of other real types in float32: what they feed, store and compute."""

from __future__ import annotations

import numpy as np
import onnxruntime
import pytest
from graph_nets import parse, run, weights
from onnx import TensorProto, helper, numpy_helper

from anynpu.graph.precision import in_float32

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
