"""Costs of networks small enough to count by hand."""

from __future__ import annotations

import numpy as np
import pytest
from graph_nets import parse, weights

from anynpu.errors import Unsupported
from anynpu.graph.cost import cost


def macs(text, **tensors):
    return cost(parse(text, **tensors)).macs


def test_small_network_by_hand():
    model = parse(
        """g (float[1,3,8,8] x) => (float[1,10] y) {
            c = Conv<pads=[1,1,1,1]>(x, w, b)
            r = Relu(c)
            p = GlobalAveragePool(r)
            f = Flatten(p)
            y = Gemm<transB=1>(f, v, k)
        }""",
        w=weights(4, 3, 3, 3),
        b=weights(4),
        v=weights(10, 4),
        k=weights(10),
    )
    found = cost(model)
    assert found.macs == 4 * 64 * 27 + 10 * 4
    assert found.parameters == 108 + 4 + 40 + 10
    assert found.weight_bytes == 4 * found.parameters
    # Relu reads 4x8x8 and writes 4x8x8
    assert found.peak_activation_elements == 512
    assert [(n.op_type, n.macs, n.parameters, n.output_shape) for n in found.nodes] == [
        ("Conv", 6912, 112, (1, 4, 8, 8)),
        ("Relu", 0, 0, (1, 4, 8, 8)),
        ("GlobalAveragePool", 0, 0, (1, 4, 1, 1)),
        ("Flatten", 0, 0, (1, 4)),
        ("Gemm", 40, 50, (1, 10)),
    ]


@pytest.mark.parametrize(
    ("text", "shapes", "wanted"),
    [
        ("g (float[1,8,4,4] x) => (float[1,8,2,2] y) { y = Conv<group=8>(x, w) }", (8, 1, 3, 3), 8 * 4 * 9),
        ("g (float[1,8,4,4] x) => (float[1,6,4,4] y) { y = Conv<group=2>(x, w) }", (6, 4, 1, 1), 6 * 16 * 4),
        ("g (float[2,3,9] x) => (float[2,4,4] y) { y = Conv<strides=[2]>(x, w) }", (4, 3, 3), 2 * 4 * 4 * 9),
        ("g (float[1,3,4,4] x) => (float[1,5,8,8] y) { y = ConvTranspose<strides=[2,2]>(x, w) }", (3, 5, 2, 2), 960),
        ("g (float[2,5,8] x) => (float[2,5,3] y) { y = MatMul(x, w) }", (8, 3), 2 * 5 * 3 * 8),
        ("g (float[8] x) => (float[3] y) { y = MatMul(x, w) }", (8, 3), 24),
        ("g (float[2,8] x) => (float[2] y) { y = MatMul(x, w) }", (8,), 16),
        ("g (float[8,2] x) => (float[2,3] y) { y = Gemm<transA=1>(x, w) }", (8, 3), 48),
        ('g (float[2,5,8] x) => (float[2,5,3] y) { y = Einsum<equation="bij,jk->bik">(x, w) }', (8, 3), 240),
        ('g (float[2,5,8] x) => (float[2,5,3] y) { y = Einsum<equation="...j,jk->...k">(x, w) }', (8, 3), 240),
        ('g (float[2,5,8] x) => (float[2,8] y) { y = Einsum<equation="bij->bj">(x) }', (1,), 0),
        ("g (float[2,8] x) => (float[2,8] y) { y = Mul(x, w) }", (2, 8), 0),
    ],
)
def test_operators(text, shapes, wanted):
    assert macs(text, w=weights(*shapes)) == wanted


def test_attention_counts_both_activations():
    text = "g (float[2,4,5,8] q, float[2,4,8,5] k) => (float[2,4,5,5] y) { y = MatMul(q, k) }"
    assert macs(text) == 2 * 4 * 5 * 5 * 8


def test_recurrent():
    text = "g (float[7,2,5] x) => (float[7,1,2,3] y) { y = LSTM<hidden_size=3>(x, w, r) }"
    assert macs(text, w=weights(1, 12, 5), r=weights(1, 12, 3)) == 7 * 2 * 12 * 8


def test_skip_connection_keeps_the_tensor_alive():
    chain = "g (float[1,100] x) => (float[1,100] y) { a = Relu(x)\n b = Tanh(a)\n c = Exp(b)\n y = Add(c, %s) }"
    # x, and then one more in and out: with the skip three are alive at the second operator
    assert cost(parse(chain % "c")).peak_activation_elements == 200
    assert cost(parse(chain % "a")).peak_activation_elements == 300


def test_graph_outputs_stay_alive():
    text = "g (float[1,100] x) => (float[1,100] a, float[1,100] c) { a = Relu(x)\n b = Tanh(a)\n c = Exp(b) }"
    assert cost(parse(text)).peak_activation_elements == 300


def test_views_need_no_memory():
    text = "g (float[1,100] x) => (float[100] z) { y = Relu(x)\n z = Reshape(y, s) }"
    assert cost(parse(text, s=np.array([100]))).peak_activation_elements == 200


def test_shared_and_shape_constants_are_counted_right():
    model = parse(
        "g (float[1,8] x) => (float[8,1] y) { a = MatMul(x, w)\n b = MatMul(a, w)\n y = Reshape(b, s) }",
        w=weights(8, 8),
        s=np.array([8, 1]),
    )
    found = cost(model)
    assert (found.macs, found.parameters, found.weight_bytes) == (128, 64, 256)
    assert [n.parameters for n in found.nodes] == [64, 0, 0]


def test_quantised_weights_are_bytes():
    model = parse(
        "g (float[1,8] x) => (float[1,4] y) { d = DequantizeLinear(q, s, z)\n y = MatMul(x, d) }",
        q=np.ones((8, 4), np.int8),
        s=np.float32(0.1),
        z=np.int8(0),
    )
    found = cost(model)
    assert (found.macs, found.weight_bytes, found.peak_activation_elements) == (32, 32 + 4 + 1, 12)
    assert [n.op_type for n in found.nodes] == ["MatMul"]


def test_dynamic_shapes_are_refused():
    with pytest.raises(Unsupported, match="dynamic shapes"):
        cost(parse("g (float[N,8] x) => (float[N,8] y) { y = Relu(x) }"))
