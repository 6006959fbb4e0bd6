"""Simplification: fewer nodes, the same results, and no trust in the simplifier."""

from __future__ import annotations

import numpy as np
import pytest
from graph_nets import parse, run, weights
from onnx import helper, numpy_helper

from anynpu.errors import IntegrityError
from anynpu.graph import simplify as module
from anynpu.graph.fold import copied
from anynpu.graph.passes import Pass
from anynpu.graph.simplify import simplify

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


def test_fewer_nodes_same_results():
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


def test_infinite_masks_become_finite_where_that_changes_nothing():
    mask = np.where(np.tri(3, 4), 0, -np.inf).astype(np.float32)
    model, x = parse(MASKED, mask=mask), weights(1, 3, 4, seed=5)
    simpler, effects = simplify(model)
    assert effects[-1].name == "finite-masks" and effects[-1].changed == 1
    assert all(np.isfinite(numpy_helper.to_array(tensor)).all() for tensor in simpler.graph.initializer)
    np.testing.assert_array_equal(run(model, x)[0], run(simpler, x)[0])
    shown = parse(MASKED.replace("Softmax<axis=-1>", "Relu").replace("Add", "Max"), mask=-mask)
    assert simplify(shown)[1][-1].dropped  # its infinities are results


def test_pieces_without_elements_leave_concatenations():
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


def test_constants_that_an_old_file_lists_as_inputs_are_constants():
    model = net()
    for stored in model.graph.initializer:
        model.graph.input.append(helper.make_tensor_value_info(stored.name, stored.data_type, stored.dims))
    model.ir_version = 3
    simpler, effects = simplify(model)
    assert [value.name for value in simpler.graph.input] == ["x"] and not any(each.dropped for each in effects)
    x = weights(1, 3, 8, 8, seed=5)
    assert np.allclose(run(net(), x)[0], run(simpler, x)[0], rtol=1e-5, atol=1e-6)


def test_border_is_kept():
    model = net()
    simpler, _ = simplify(model)
    assert list(simpler.graph.input) == list(model.graph.input)
    assert list(simpler.graph.output) == list(model.graph.output)


def test_model_of_one_identity():
    model = parse("g (float[2,3] x) => (float[2,3] y) { y = Identity(x) }")
    assert np.array_equal(run(simplify(model)[0], weights(2, 3))[0], weights(2, 3))


def test_quantised_weights_stay_integers():
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


@pytest.mark.parametrize(
    ("lie", "said"),
    [
        (lambda graph: setattr(graph.node[1], "op_type", "Sigmoid"), "it would change output 'y'"),
        (lambda graph: setattr(graph.node[0], "op_type", "Nonsense"), "it would change it so that it does not run"),
    ],
    ids=["another result", "no result"],
)
def test_a_pass_that_lies_is_left_out_and_the_others_run(monkeypatch, lie, said):
    def call(model):
        result = copied(model)
        lie(result.graph)
        return result, 1

    monkeypatch.setattr(
        module, "SIMPLIFYING", (*module.SIMPLIFYING, Pass("liar", "it says that it keeps results", call))
    )
    simpler, effects = simplify(net())
    assert [node.op_type for node in simpler.graph.node] == ["Conv", "Relu", "GlobalAveragePool", "Reshape"]
    assert effects[-1].name == "liar" and effects[-1].dropped.startswith(said)


def test_a_pass_that_takes_an_output_away_is_an_error(monkeypatch):
    def call(model):
        result = copied(model)
        del result.graph.output[1:]
        return result, 1

    two = parse("g (float[2,3] x) => (float[2,3] y, float[2,3] z) { y = Relu(x)\nz = Exp(x) }")
    monkeypatch.setattr(module, "SIMPLIFYING", (Pass("thief", "it takes", call, keeps_results=False),))
    with pytest.raises(IntegrityError, match="changed the inputs or outputs"):
        simplify(two)


NETS = {
    "twins": """g (float[1,8] x) => (float[1,8] y) {
        a = Mul(x, s)
        b = Mul(x, same)
        y = Sub(a, b)
    }""",
    "dense": """g (float[2,5,8] x) => (float[2,5,4] y) {
        m = MatMul(x, w)
        y = Add(m, o)
    }""",
    "chains": """g (float[2,5,8] x) => (float[8,10] y) {
        t = Transpose<perm=[2,0,1]>(x)
        u = Transpose<perm=[0,2,1]>(t)
        f = Flatten<axis=1>(u)
        one = Constant<value_float=1.0>()
        y = Mul(f, one)
    }""",
    "cuts": """g (float[2,5,8] x) => (float[2,3,4] y) {
        zero = Constant<value_ints=[0]>()
        three = Constant<value_ints=[3]>()
        four = Constant<value_ints=[4]>()
        first = Constant<value_ints=[1]>()
        last = Constant<value_ints=[-1]>()
        a = Slice(x, zero, three, first)
        y = Slice(a, zero, four, last)
    }""",
}


@pytest.mark.parametrize("name", NETS)
def test_no_larger_than_what_onnxsim_makes(name):
    onnxsim = pytest.importorskip("onnxsim", reason="onnxsim is not installed: pip install 'anynpu[dev]'")
    stored = {"s": weights(8), "same": weights(8), "w": weights(8, 4), "o": weights(4, seed=1)}
    model = parse(NETS[name], **{key: value for key, value in stored.items() if f" {key})" in NETS[name]})
    simpler, x = simplify(model)[0], weights(*[d.dim_value for d in model.graph.input[0].type.tensor_type.shape.dim])
    np.testing.assert_allclose(run(simpler, x)[0], run(model, x)[0], rtol=1e-5, atol=1e-6)
    assert len(simpler.graph.node) <= len(onnxsim.simplify(model)[0].graph.node)


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


def test_attention_stays_in_operators_of_onnx():
    names = {"wq": (8, 8), "wk": (8, 8), "wv": (8, 8), "bq": (8,), "bk": (8,), "bv": (8,)}
    model = parse(ATTENTION, **{name: weights(*shape, seed=at) for at, (name, shape) in enumerate(names.items())})
    simpler, _ = simplify(model)
    assert {node.domain for node in simpler.graph.node} == {""}
