"""Simplification: fewer nodes, the same results, and no trust in the simplifier."""

from __future__ import annotations

import importlib.metadata
import sys

import numpy as np
import pytest
from graph_nets import parse, run, weights
from onnx import numpy_helper

from anynpu.graph import simplify as module
from anynpu.graph.simplify import simplify, tool_versions

NET = """g (float[1,3,8,8] x) => (float[1,4] y) {
    c = Conv<pads=[1,1,1,1]>(x, w)
    r = Relu(c)
    i = Identity(r)
    d = Dropout(i)
    g = GlobalAveragePool(d)
    s = Shape(g)
    zero = Constant<value_int=0>()
    n = Gather(s, zero)
    axes = Constant<value_ints=[0]>()
    n1 = Unsqueeze(n, axes)
    rest = Constant<value_ints=[-1]>()
    target = Concat<axis=0>(n1, rest)
    dead = Exp(g)
    y = Reshape(g, target)
}"""


def net():
    return parse(NET, w=weights(4, 3, 3, 3), unused=weights(5))


@pytest.fixture(params=["onnxsim", "passes"])
def way(request, monkeypatch):
    if request.param == "passes":
        monkeypatch.setattr(module, "tool_versions", lambda: {"onnx": "1"})
    elif "onnxsim" not in tool_versions():
        pytest.skip("onnxsim is not installed: pip install 'anynpu[build]'")
    return request.param


def test_fewer_nodes_same_results(way):
    model = net()
    simpler, _ = simplify(model)
    assert [node.op_type for node in simpler.graph.node] == ["Conv", "Relu", "GlobalAveragePool", "Reshape"]
    assert "unused" not in [tensor.name for tensor in simpler.graph.initializer]
    x = weights(1, 3, 8, 8, seed=5)
    assert np.allclose(run(model, x)[0], run(simpler, x)[0], rtol=1e-5, atol=1e-6)


MASKED = """g (float[1,3,4] x) => (float[1,3,4] y) {
    a = Add(x, mask)
    y = Softmax<axis=-1>(a)
}"""


def test_infinite_masks_become_finite_where_that_changes_nothing(way):
    mask = np.where(np.tri(3, 4), 0, -np.inf).astype(np.float32)
    model, x = parse(MASKED, mask=mask), weights(1, 3, 4, seed=5)
    simpler, effects = simplify(model)
    assert effects[-1].name == "finite-masks" and effects[-1].changed == 1
    assert all(np.isfinite(numpy_helper.to_array(tensor)).all() for tensor in simpler.graph.initializer)
    np.testing.assert_array_equal(run(model, x)[0], run(simpler, x)[0])
    shown = parse(MASKED.replace("Softmax<axis=-1>", "Relu").replace("Add", "Max"), mask=-mask)
    assert simplify(shown)[1][-1].dropped  # its infinities are results


def test_pieces_without_elements_leave_concatenations(way):
    model = parse(
        """g (float[1,4,3] x) => (float[1,4,3] y) {
            start = Constant<value_ints=[4]>()
            end = Constant<value_ints=[9]>()
            axis = Constant<value_ints=[1]>()
            rest = Slice(x, start, end, axis)
            doubled = Add(x, x)
            whole = Concat<axis=1>(doubled, rest)
            y = Relu(whole)
        }"""
    )
    simpler, _ = simplify(model)
    assert not {"Slice"} & {node.op_type for node in simpler.graph.node}
    x = weights(1, 4, 3)
    assert np.array_equal(run(simpler, x)[0], run(model, x)[0])


def test_border_is_kept(way):
    model = net()
    simpler, _ = simplify(model)
    assert list(simpler.graph.input) == list(model.graph.input)
    assert list(simpler.graph.output) == list(model.graph.output)


def test_model_of_one_identity(way):
    model = parse("g (float[2,3] x) => (float[2,3] y) { y = Identity(x) }")
    assert np.array_equal(run(simplify(model)[0], weights(2, 3))[0], weights(2, 3))


def test_quantised_weights_stay_integers(way):
    model = parse(
        """g (float[1,8] x) => (float[1,4] y) {
            wd = DequantizeLinear(wq, scale, zero)
            y = MatMul(x, wd)
        }""",
        wq=np.arange(32, dtype=np.int8).reshape(8, 4),
        scale=np.float32(0.02),
        zero=np.int8(0),
    )
    assert "DequantizeLinear" in [node.op_type for node in simplify(model)[0].graph.node]


def fake_onnxsim(tmp_path, monkeypatch, body):
    """Puts an onnxsim of our own in front of the real one, for the child process."""
    (tmp_path / "onnxsim.py").write_text(body)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(module, "tool_versions", lambda: {"onnxsim": "0"})


@pytest.mark.parametrize(
    "body",
    [
        "import os\nos.abort()\n",
        "def simplify(model, **settings):\n    raise RuntimeError('no')\n",
        "def simplify(model, **settings):\n    del model.graph.output[:]\n    return model, True\n",
        "def simplify(model, **settings):\n    model.graph.output[0].name = 'other'\n    return model, True\n",
    ],
)
def test_failing_onnxsim_is_replaced(tmp_path, monkeypatch, caplog, body):
    fake_onnxsim(tmp_path, monkeypatch, body)
    simpler, _ = simplify(net())
    assert [node.op_type for node in simpler.graph.node] == ["Conv", "Relu", "GlobalAveragePool", "Reshape"]
    assert "onnxsim" in caplog.text


def test_lying_onnxsim_is_caught_and_our_own_passes_do_it(tmp_path, monkeypatch):
    body = "def simplify(model, **settings):\n    model.graph.node[1].op_type = 'Sigmoid'\n    return model, True\n"
    fake_onnxsim(tmp_path, monkeypatch, body)
    simpler, effects = simplify(net())
    assert [node.op_type for node in simpler.graph.node] == ["Conv", "Relu", "GlobalAveragePool", "Reshape"]
    assert effects[0].name == "onnxsim" and effects[0].dropped.startswith("it would change output 'y'")
    assert [(each.name, each.changed) for each in effects[1:]] == [("dropout", 1), ("fold", 1), ("tidy", 1)]


def test_versions_do_not_import_onnxsim():
    sys.modules.pop("onnxsim", None)
    versions = tool_versions()
    assert "onnxsim" not in sys.modules
    assert versions["onnx"] == importlib.metadata.version("onnx")
    assert "onnx-ir" in versions


ATTENTION = """g (float[1,5,8] x) => (float[1,5,8] y) {
    q0 = MatMul(x, wq)
    k0 = MatMul(x, wk)
    v0 = MatMul(x, wv)
    q1 = Add(q0, bq)
    k1 = Add(k0, bk)
    v1 = Add(v0, bv)
    heads = Constant<value_ints=[1,5,2,4]>()
    q2 = Reshape(q1, heads)
    k2 = Reshape(k1, heads)
    v2 = Reshape(v1, heads)
    q = Transpose<perm=[0,2,1,3]>(q2)
    k = Transpose<perm=[0,2,3,1]>(k2)
    v = Transpose<perm=[0,2,1,3]>(v2)
    scores = MatMul(q, k)
    half = Constant<value_float=0.5>()
    scaled = Mul(scores, half)
    weights = Softmax<axis=-1>(scaled)
    joined = MatMul(weights, v)
    turned = Transpose<perm=[0,2,1,3]>(joined)
    flat = Constant<value_ints=[1,5,8]>()
    y = Reshape(turned, flat)
}"""


def test_attention_stays_in_operators_of_onnx(way):
    """onnxsim fuses it into an operator of ONNX Runtime, whose shape nobody else infers."""
    names = {"wq": (8, 8), "wk": (8, 8), "wv": (8, 8), "bq": (8,), "bk": (8,), "bv": (8,)}
    model = parse(ATTENTION, **{name: weights(*shape, seed=at) for at, (name, shape) in enumerate(names.items())})
    simpler, _ = simplify(model)
    assert {node.domain for node in simpler.graph.node} == {""}
