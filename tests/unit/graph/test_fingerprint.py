"""One network, many spellings, one fingerprint; another network, another fingerprint. No torch needed here."""

from __future__ import annotations

import random

import numpy as np
import onnx
import pytest
from graph_nets import parse, run, weights
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import helper, numpy_helper

from anynpu.graph import passes
from anynpu.graph.fingerprint import fingerprint
from anynpu.graph.simplify import SIMPLIFYING

W = weights(4, 3, 3, 3)
B = weights(4, seed=1)
V = weights(4, 10, seed=2)
K = weights(10, seed=3)

NET = """g (float[1,3,8,8] x) => (float[1,10] y) {
    c = Conv<pads=[1,1,1,1], strides=[2,2]>(x, w, b)
    r = Relu(c)
    m = MaxPool<kernel_shape=[2,2]>(r)
    q = Sub(m, r1)
    r1_ = Sigmoid(m)
    p = Mul(q, r1_)
    a = ReduceMean<axes=[2,3], keepdims=0>(p)
    y = Gemm(a, v, k)
}"""


def net(**changes):
    return parse(NET, **({"w": W, "b": B, "v": V, "k": K, "r1": weights(1, 4, 1, 1, seed=4)} | changes))


def one_layer(text, opset=17, **tensors):
    return fingerprint(parse(text, opset, **tensors))


def test_is_a_sha256():
    assert len(fingerprint(net())) == 64
    assert int(fingerprint(net()), 16)


def renamed(model, rng):
    """Returns the model with every name changed and nodes, initializers and value infos in another valid order."""
    twin = onnx.ModelProto()
    twin.CopyFrom(model)
    graph = twin.graph
    names = {n for node in graph.node for n in (*node.input, *node.output) if n}
    new = {name: f"t{rng.getrandbits(40):x}" for name in sorted(names)}
    for node in graph.node:
        node.name = f"n{rng.getrandbits(40):x}"
        node.input[:] = [new.get(n, n) for n in node.input]
        node.output[:] = [new.get(n, n) for n in node.output]
    for value in (*graph.input, *graph.output, *graph.initializer):
        value.name = new[value.name]
    done = {v.name for v in (*graph.input, *graph.initializer)} | {""}
    rest, ordered = list(graph.node), []
    while rest:
        node = rng.choice([n for n in rest if set(n.input) <= done])
        rest.remove(node)
        ordered.append(onnx.NodeProto.FromString(node.SerializeToString()))
        done |= set(node.output)
    tensors = [onnx.TensorProto.FromString(t.SerializeToString()) for t in graph.initializer]
    rng.shuffle(tensors)
    del graph.node[:], graph.initializer[:]
    graph.node.extend(ordered)
    graph.initializer.extend(tensors)
    twin.producer_name = "other"
    return twin


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 2**32))
def test_names_and_order_do_not_count(seed):
    assert fingerprint(renamed(net(), random.Random(seed))) == fingerprint(net())


def test_constants_as_nodes():
    model = net()
    for tensor in list(model.graph.initializer):
        model.graph.node.insert(0, helper.make_node("Constant", [], [tensor.name], value=tensor))
    del model.graph.initializer[:]
    assert fingerprint(model) == fingerprint(net())


def test_our_own_simplification_does_not_count():
    assert fingerprint(passes.run(SIMPLIFYING, net())[0]) == fingerprint(net())


X = "g (float[1,3,8,8] x) => (float[1,4,8,8] y) "
D = "g (float[2,4] x) => (float[2,10] y) "
SAME = [
    (X + "{ y = Conv<pads=[1,1,1,1]>(x, w) }", X + '{ y = Conv<auto_pad="SAME_UPPER">(x, w) }'),
    (
        X + "{ y = Conv<pads=[1,1,1,1]>(x, w) }",
        X + "{ y = Conv<pads=[1,1,1,1], kernel_shape=[3,3], strides=[1,1], dilations=[1,1], group=1>(x, w) }",
    ),
    (X + "{ y = Conv<pads=[1,1,1,1]>(x, w, zero) }", X + "{ y = Conv<pads=[1,1,1,1]>(x, w) }"),
    (X + "{ p = Pad(x, border)\n y = Conv(p, w) }", X + "{ y = Conv<pads=[1,1,1,1]>(x, w) }"),
    (X + "{ c = Conv<pads=[1,1,1,1]>(x, w)\n y = Add(c, b4) }", X + "{ y = Conv<pads=[1,1,1,1]>(x, w, b) }"),
    (
        X + "{ i = Identity(x)\n d = Dropout(i)\n y = Conv<pads=[1,1,1,1]>(d, w)\n z = Exp(y) }",
        X + "{ y = Conv<pads=[1,1,1,1]>(x, w) }",
    ),
    (D + "{ m = MatMul(x, v)\n y = Add(k, m) }", D + "{ y = Gemm(x, v, k) }"),
    (D + "{ y = Gemm<transB=1>(x, vt, k) }", D + "{ y = Gemm(x, v, k1) }"),
    (D + "{ t = Transpose(vt)\n m = MatMul(x, t)\n y = Add(m, k) }", D + "{ y = Gemm<alpha=1.0, beta=1.0>(x, v, k) }"),
    (
        D + "{ m = MatMul(x, v)\n a = Relu(m)\n b = Tanh(m)\n y = Mul(a, b) }",
        D + "{ m = MatMul(x, v)\n b = Tanh(m)\n a = Relu(m)\n y = Mul(b, a) }",
    ),
    (
        "g (float[1,3,8,8] x) => (float[1,3] y) { p = GlobalAveragePool(x)\n y = Flatten(p) }",
        "g (float[1,3,8,8] x) => (float[1,3] y) { y = ReduceMean<axes=[-1,-2], keepdims=0>(x) }",
    ),
    (
        "g (float[1,3,8,8] x) => (float[1,3] y) { p = AveragePool<kernel_shape=[8,8]>(x)\n y = Squeeze(p, hw) }",
        "g (float[1,3,8,8] x) => (float[1,3] y) { p = GlobalAveragePool(x)\n s = Shape<end=2>(x)\n y = Reshape(p, s) }",
    ),
    (
        "g (float[2,12] x) => (float[2,4] y) { p, q, r = Split<axis=1>(x, thirds)\n y = Sub(p, r) }",
        "g (float[2,12] x) => (float[2,4] y) { p = Slice(x, s0, s4, one)\n r = Slice(x, s8, s12, one)\n"
        " y = Sub(p, r) }",
    ),
    (
        "g (float[2,4] x) => (float[2,4] y) { y = Softmax<axis=-1>(x) }",
        "g (float[2,4] x) => (float[2,4] y) { y = Softmax<axis=1>(x) }",
    ),
    (
        "g (float[2,4] x) => (float[2,4] y) { p = Transpose(x)\n q = Transpose(p)\n y = Relu(q) }",
        "g (float[2,4] x) => (float[2,4] y) { y = Relu(x) }",
    ),
    (
        "g (float[2,4] x) => (float[4,2] y) { p = Reshape(x, eight)\n q = Relu(p)\n y = Reshape(q, four2) }",
        "g (float[2,4] x) => (float[4,2] y) { p = Reshape(x, four2)\n y = Relu(p) }",
    ),
]
CONSTANTS = {
    "eight": np.array([8]),
    "four2": np.array([4, 2]),
    "w": W,
    "b": B,
    "b4": B.reshape(1, 4, 1, 1),
    "zero": np.zeros(4, np.float32),
    "v": V,
    "vt": V.T.copy(),
    "k": K,
    "k1": K[None],
    "border": np.array([0, 0, 1, 1, 0, 0, 1, 1]),
    "hw": np.array([2, 3]),
    "thirds": np.array([4, 4, 4]),
    "s0": np.array([0]),
    "s4": np.array([4]),
    "s8": np.array([-4]),
    "s12": np.array([2**62]),
    "one": np.array([1]),
}


@pytest.mark.parametrize(("left", "right"), SAME)
def test_spellings_of_one_network(left, right):
    assert one_layer(left, **CONSTANTS) == one_layer(right, **CONSTANTS)


NORMALISED = """{
    c = Conv<pads=[1,1,1,1]>(x, w, b)
    n = BatchNormalization<epsilon=0.001>(c, gamma, beta, mean, var)
    y = Relu(n)
}"""
NORM = {
    "gamma": weights(4, seed=6),
    "beta": weights(4, seed=7),
    "mean": weights(4, seed=8),
    "var": weights(4, seed=9) ** 2,
}


def test_batch_norm_folded_by_hand():
    scale = NORM["gamma"] / np.sqrt(NORM["var"] + np.float32(0.001))
    folded = {"w": W * scale[:, None, None, None], "b": (B - NORM["mean"]) * scale + NORM["beta"]}
    plain = one_layer(X + NORMALISED, w=W, b=B, **NORM)
    assert plain == one_layer(X + "{ c = Conv<pads=[1,1,1,1]>(x, w, b)\n y = Relu(c) }", **folded)


@pytest.mark.parametrize("name", ["gamma", "beta", "mean", "var"])
def test_batch_norm_counts(name):
    text = X + NORMALISED
    other = NORM | {name: NORM[name] + np.float32(0.01)}
    assert one_layer(text, w=W, b=B, **NORM) != one_layer(text, w=W, b=B, **other)


@settings(max_examples=40, deadline=None)
@given(st.sampled_from(["w", "gamma", "beta", "mean", "var"]), st.integers(0, 107))
def test_one_ulp_before_batch_norm_counts_when_folding_keeps_it(name, place):
    """Two networks agree only if folding makes them the same, bit for bit: one network to any exporter."""
    before = {"w": W, **NORM}
    values = before[name].copy()
    values.flat[place % values.size] = np.nextafter(values.flat[place % values.size], np.float32(np.inf))
    after = before | {name: values}

    def folded(t):
        scale = t["gamma"] / np.sqrt(t["var"] + np.float32(0.001))
        return (t["w"] * scale[:, None, None, None]).tobytes() + ((B - t["mean"]) * scale + t["beta"]).tobytes()

    same = one_layer(X + NORMALISED, b=B, **before) == one_layer(X + NORMALISED, b=B, **after)
    assert same is (folded(before) == folded(after))


def test_opsets_that_moved_attributes_to_inputs():
    old = (
        "g (float[1,3,8,8] x) => (float[1,3] y) { c = Clip<min=0.0, max=6.0>(x)\n p = Pad<pads=[0,0,1,0,0,0,1,0]>(c)\n"
        " m = ReduceSum<axes=[2,3]>(p)\n y = Squeeze<axes=[2,3]>(m) }"
    )
    new = (
        "g (float[1,3,8,8] x) => (float[1,3] y) { c = Clip(x, lo, hi)\n p = Pad(c, pads)\n"
        " y = ReduceSum<keepdims=0>(p, axes) }"
    )
    constants = {
        "lo": np.float32(0),
        "hi": np.float32(6),
        "pads": np.array([0, 0, 1, 0, 0, 0, 1, 0]),
        "axes": np.array([2, 3]),
    }
    assert one_layer(old, opset=10) == one_layer(new, opset=18, **constants)


def all_weights():
    return [
        (name, place) for name, size in (("w", 108), ("b", 4), ("v", 40), ("k", 10), ("r1", 4)) for place in range(size)
    ]


@settings(max_examples=80, deadline=None)
@given(st.sampled_from(all_weights()), st.booleans())
def test_one_ulp_of_one_weight_counts(which, up):
    name, place = which
    model = net()
    tensor = next(t for t in model.graph.initializer if t.name == name)
    values = numpy_helper.to_array(tensor).copy()
    values.flat[place] = np.nextafter(values.flat[place], np.float32(np.inf if up else -np.inf))
    tensor.CopyFrom(numpy_helper.from_array(values, name))
    assert fingerprint(model) != fingerprint(net())


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("strides=[2,2]", "strides=[1,1]"),
        ("strides=[2,2]", "strides=[2,2], dilations=[2,2]"),
        ("pads=[1,1,1,1]", "pads=[1,1,0,0]"),
        ("pads=[1,1,1,1]", "pads=[0,0,1,1]"),
        ("Relu", "Tanh"),
        ("Relu", "LeakyRelu"),
        ("Relu", "LeakyRelu<alpha=0.02>"),
        ("Sub(m, r1)", "Sub(r1, m)"),
        ("Sub(m, r1)", "Add(m, r1)"),
        ("Mul(q, r1_)", "Mul(q, q)"),
        ("MaxPool<", "AveragePool<"),
        ("kernel_shape=[2,2]", "kernel_shape=[1,2]"),
        ("axes=[2,3]", "axes=[3,2]"),
        ("ReduceMean", "ReduceMax"),
        ("float[1,3,8,8] x", "float[1,3,9,9] x"),
        ("float[1,3,8,8] x", "float[2,3,8,8] x"),
    ],
)
def test_other_networks_differ(old, new):
    assert old in NET
    text = NET.replace(old, new).replace("float[1,10] y", "float[2,10] y" if "[2,3,8" in new else "float[1,10] y")
    other = parse(text, w=W, b=B, v=V, k=K, r1=weights(1, 4, 1, 1, seed=4))
    assert (fingerprint(other) == fingerprint(net())) is (new == "axes=[3,2]")


def test_output_order_and_input_order_count():
    a = "g (float[2] x, float[2] z) => (float[2] y, float[2] q) { y = Sub(x, z)\n q = Relu(x) }"
    b = "g (float[2] x, float[2] z) => (float[2] q, float[2] y) { y = Sub(x, z)\n q = Relu(x) }"
    c = "g (float[2] z, float[2] x) => (float[2] y, float[2] q) { y = Sub(x, z)\n q = Relu(x) }"
    assert len({one_layer(a), one_layer(b), one_layer(c)}) == 3


def test_types_count():
    text = "g (float[2] x) => (float[2] y) { y = Relu(x) }"
    assert one_layer(text) != one_layer(text.replace("float", "float16"))


def test_sharing_is_no_difference_but_wiring_is():
    two = "g (float[2] x) => (float[2] y) { a = Exp(x)\n b = Exp(x)\n y = Sub(a, b) }"
    one = "g (float[2] x) => (float[2] y) { a = Exp(x)\n y = Sub(a, a) }"
    nested = "g (float[2] x) => (float[2] y) { a = Exp(x)\n b = Exp(a)\n y = Sub(a, b) }"
    assert one_layer(two) == one_layer(one) != one_layer(nested)


def test_branches_are_looked_into():
    text = """g (float[2] x, bool c) => (float[2] y) {{
        y = If (c) <then_branch = a () => (float[2] p) {{ p = {}(x) }},
                    else_branch = b () => (float[2] q) {{ q = Neg(x) }}>
    }}"""
    relu, again, tanh = (one_layer(text.format(op)) for op in ("Relu", "Relu", "Tanh"))
    assert relu == again != tanh


def test_many_shared_products_stay_quick():
    lines = "\n".join(f"t{i + 1} = Mul(t{i}, t{i})" for i in range(40))
    assert one_layer(f"g (float[2] t0) => (float[2] t40) {{ {lines} }}")


STEPS = [
    "{o} = Relu({i})",
    "{o} = Neg({i})",
    "{o} = Clip({i}, lo, hi)",
    "{o} = Add({i}, c1)",
    "{o} = Add({i}, c4)",
    "{o} = Mul({i}, c4)",
    "{o} = Mul({i}, half)",
    "{o} = Mul({i}, ones)",
    "{o} = Sub({i}, c4)",
    "{o} = Sub(c4, {i})",
    "{o} = Div({i}, two)",
    "{o} = Mul({i}, {i})",
    "{o} = MatMul({i}, m)",
    "{o} = Gemm({i}, m, c4)",
    "{o} = Gemm<transB=1>({i}, m, c4)",
    "{o}t = Transpose({i})\n {o} = Reshape({o}t, s24)",
    "{o}a, {o}b = Split<axis=1>({i}, twos)\n {o} = Concat<axis=1>({o}b, {o}a)",
    "{o}a = Slice({i}, z0, z2, z1)\n {o}b = Slice({i}, z2, z4, z1)\n {o} = Concat<axis=1>({o}a, {o}b)",
    "{o}r = Reshape({i}, s8)\n {o}u = Tanh({o}r)\n {o} = Reshape({o}u, s24)",
    "{o} = Softmax({i})",
    "{o}m = ReduceMean<axes=[1]>({i})\n {o} = Sub({i}, {o}m)",
]
OPERANDS = {
    "lo": np.float32(-1),
    "hi": np.float32(0.5),
    "c1": np.float32(0.3),
    "c4": weights(4, seed=11),
    "half": np.float32(0.5),
    "two": np.float32(2),
    "ones": np.ones((1, 4), np.float32),
    "m": weights(4, 4, seed=12),
    "s24": np.array([2, 4]),
    "s8": np.array([8]),
    "twos": np.array([2, 2]),
    "z0": np.array([0]),
    "z1": np.array([1]),
    "z2": np.array([2]),
    "z4": np.array([4]),
}


def program(steps):
    lines = "\n".join(STEPS[step].format(i=f"t{n}", o=f"t{n + 1}") for n, step in enumerate(steps))
    return parse(f"g (float[2,4] t0) => (float[2,4] t{len(steps)}) {{ {lines} }}", **OPERANDS)


def test_equal_fingerprints_mean_equal_results():
    """Over many short programs, whatever the rules merge computes the same."""
    rng = random.Random(3)
    pairs = [(a, b) for a in range(len(STEPS)) for b in range(len(STEPS))]
    programs = (
        [(a,) for a in range(len(STEPS))] + pairs + [tuple(rng.choices(range(len(STEPS)), k=3)) for _ in range(200)]
    )
    x = weights(2, 4, seed=13)
    found: dict[str, np.ndarray] = {}
    merged = 0
    for steps in programs:
        model = program(steps)
        digest, result = fingerprint(model), run(model, x)[0]
        if digest in found:
            merged += 1
            assert np.allclose(found[digest], result, rtol=1e-5, atol=1e-6), steps
        found.setdefault(digest, result)
    assert merged > 50


def test_a_sum_that_becomes_one_number_has_a_fingerprint():
    """As the last layer of an opinion score, of one column, whose result has no axes left."""
    text = """g (float[1,4] x) => (float y) {
        m = MatMul(x, w)
        n = Reshape(m, s)
        y = Add(n, b)
    }"""
    tensors = {"w": weights(4, 1), "s": np.zeros(0, np.int64), "b": np.float32(0.5)}
    assert one_layer(text, **tensors) != one_layer(text, **tensors | {"b": np.float32(0.25)})
