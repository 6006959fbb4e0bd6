"""Functions that exporters write out are one operator, however they are written and whatever was folded into them."""

from __future__ import annotations

import numpy as np
import pytest
from lowered_nets import agrees, net
from onnx import helper

from anynpu.lowering.lower import lower

ROOT, HALF, ONE = np.float32(2**0.5), np.float32(0.5), np.float32(1)
NUMBERS = {
    "root": ROOT, "inverse": np.float32(0.5**0.5), "half": HALF, "one": ONE, "three": np.float32(3),
    "six": np.float32(6), "cubic": np.float32(0.044715), "pi": np.float32((2 / np.pi) ** 0.5),
    "zero": np.float32(0), "k": np.float32(0.3),
}  # fmt: skip
# Each line: operator, operands, result.
WRITTEN = {
    "gelu": ("GELU", 0, "Div x root a; Erf a b; Add b one c; Mul x c d; Mul d half y"),
    "gelu of halves": ("GELU", 0, "Mul x half h; Mul x inverse a; Erf a b; Mul h b c; Add c h y"),
    "gelu, its half in the next weights": ("GELU", 1, "Div x root a; Erf a b; Add b one c; Mul x c y"),
    "gelu, its root in the weights before": ("GELU", 2, "Erf x b; Add b one c; Mul x c y"),
    "gelu of what was scaled": ("GELU", 1, "Mul x inverse a; Erf a b; Add one b c; Mul c a y"),
    "gelu by tanh": ("GELU", 0, "Pow x three p; Mul p cubic q; Add x q r; Mul r pi s; Tanh s t; Add t one u; "
                                "Mul x half h; Mul h u y"),
    "gelu by tanh of products": ("GELU", 0, "Mul x x p; Mul p cubic q; Add q one r; Mul x r s; Mul s pi t; Tanh t u; "
                                            "Add u one v; Mul x v w; Mul w half y"),
    "gelu by tanh of two factors": ("GELU", 0, "Mul x pi p; Mul x x q; Mul q cubic r; Add r one s; Mul p s t; "
                                               "Tanh t u; Add u one v; Mul x half h; Mul h v y"),
    "gelu by tanh of x three times": ("GELU", 0, "Mul x pi p; Mul x cubic q; Mul q x r; Add r one s; Mul p s t; "
                                                 "Tanh t u; Add one u v; Mul half x h; Mul h v y"),
    "hard swish": ("HARD_SWISH", 0, "Add x three a; Clip a zero six b; Mul x b c; Div c six y"),
    "hard swish, its sixth elsewhere": ("HARD_SWISH", 1, "Add x three a; Clip a zero six b; Mul x b y"),
    "hard swish by limits": ("HARD_SWISH", 0, "Add x three a; Relu a b; Min b six c; Mul x c d; Div d six y"),
}  # fmt: skip
OTHERS = {
    "sigmoid instead of erf": "Div x root a; Sigmoid a b; Add b one c; Mul x c y",
    "another sum": "Div x root a; Tanh a b; Add b half c; Mul x c y",
    "a rectifier": "Relu x a; Mul a k y",
}


def written(text):
    nodes = []
    for line in text.split("; "):
        op, *operands, result = line.split()
        nodes.append(helper.make_node(op, operands, [result]))
    used = {name for node in nodes for name in node.input}
    return net(nodes, {"x": (1, 4, 5)}, {name: array for name, array in NUMBERS.items() if name in used})


@pytest.mark.parametrize("name", WRITTEN)
def test_a_written_function_is_one_operator(name):
    kind, products, text = WRITTEN[name]
    model = written(text)
    agrees(model)
    assert lower(model).counts() == {kind: 1} | ({"MUL": products} if products else {})


@pytest.mark.parametrize("name", OTHERS)
def test_what_only_looks_alike_stays(name):
    model = written(OTHERS[name])
    agrees(model)
    assert not {"GELU", "HARD_SWISH"} & {*lower(model).counts()}


@pytest.mark.parametrize("threshold", [20.0, 1.0])
def test_a_softplus_without_its_straight_part_is_one_function(threshold):
    """PyTorch's newer exporter chooses x itself above 20."""
    nodes = [
        helper.make_node("Greater", ["x", "t"], ["far"]),
        helper.make_node("Softplus", ["x"], ["bent"]),
        helper.make_node("Where", ["far", "x", "bent"], ["y"]),
    ]
    model = net(nodes, {"x": (1, 5, 12)}, {"t": np.float32(threshold)})
    agrees(model)
    assert ("GREATER" in lower(model).counts()) == (threshold < 15)


def test_factors_and_sums_go_into_the_weights_behind_them():
    rng = np.random.default_rng(2)
    constants = {
        "s": rng.normal(0, 1, 8),
        "b": rng.normal(0, 1, 8),
        "w": rng.normal(0, 1, (8, 6)),
        "v": rng.normal(0, 1, (8, 3)),
    }
    nodes = [
        helper.make_node("LayerNormalization", ["x", "s", "b"], ["n"]),
        helper.make_node("MatMul", ["n", "w"], ["y"]),
        helper.make_node("MatMul", ["n", "v"], ["z"]),
    ]
    model = net(nodes, {"x": (1, 5, 8)}, {k: v.astype(np.float32) for k, v in constants.items()}, outputs=("y", "z"))
    agrees(model)
    # The square, the product with the inverse deviation; the sum with epsilon.
    counts = lower(model).counts()
    assert (counts["MUL"], counts["ADD"], counts["FULLY_CONNECTED"]) == (2, 1, 2)


def test_a_tensor_that_others_read_keeps_its_factor():
    weights = np.random.default_rng(2).normal(0, 1, (8, 6)).astype(np.float32)
    nodes = [
        helper.make_node("Mul", ["x", "k"], ["a"]),
        helper.make_node("MatMul", ["a", "w"], ["y"]),
        helper.make_node("Relu", ["a"], ["z"]),
    ]
    model = net(nodes, {"x": (1, 5, 8)}, {"k": np.float32(0.3), "w": weights}, outputs=("y", "z"))
    agrees(model)
    assert lower(model).counts()["MUL"] == 1


def test_a_sum_that_two_operators_read_takes_the_factor_of_neither():
    rng = np.random.default_rng(2)
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["a"]),
        helper.make_node("Add", ["a", "b"], ["c"]),
        helper.make_node("Mul", ["c", "k"], ["d"]),
        helper.make_node("Sigmoid", ["d"], ["e"]),
        helper.make_node("Mul", ["c", "e"], ["y"]),
    ]
    constants = {"w": rng.normal(0, 1, (8, 6)).astype(np.float32), "b": rng.normal(0, 1, 6).astype(np.float32)}
    model = net(nodes, {"x": (1, 5, 8)}, constants | {"k": np.float32(1.702)})
    agrees(model)
    assert lower(model).counts() == {"FULLY_CONNECTED": 1, "LOGISTIC": 1, "MUL": 2, "RESHAPE": 2}


def test_sums_with_zeros_and_products_with_ones_go():
    zeros, ones = np.zeros((1, 5, 8), np.float32), np.ones(8, np.float32)
    names = ["Add x zeros a", "Mul a ones b", "Sub b zeros c", "Sub zeros c d", "Relu d y"]
    nodes = [helper.make_node(op, operands, [result]) for op, *operands, result in map(str.split, names)]
    model = net(nodes, {"x": (1, 5, 8)}, {"zeros": zeros, "ones": ones})
    agrees(model)
    assert sum(lower(model).counts().values()) == 1
