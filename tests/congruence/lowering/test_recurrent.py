"""Recurrent layers, unrolled: every direction and state, beside ONNX Runtime, in float and in integers."""

from __future__ import annotations

import numpy as np
import pytest
from lowered_nets import agrees, by_litert, by_onnx, by_tflm, decibels, net, quantised, samples
from onnx import helper

from anynpu.errors import Unsupported
from anynpu.lowering.lower import lower

STEPS, WIDTH, SIZE = 5, 6, 8
GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
LAYERS = {
    "LSTM": ("LSTM", "forward", False, {}),
    "LSTM, both ways, with states": ("LSTM", "bidirectional", True, {}),
    "GRU, both ways": ("GRU", "bidirectional", False, {}),
    "GRU backwards, linear before its reset": ("GRU", "reverse", False, {"linear_before_reset": 1}),
    "GRU of PyTorch, with a state": ("GRU", "forward", True, {"linear_before_reset": 1}),
    "RNN of rectifiers, with a state": ("RNN", "forward", True, {"activations": ["Relu"]}),
    "LSTM of Keras, with hard sigmoids": ("LSTM", "forward", True, {"activations": ["HardSigmoid", "Tanh", "Tanh"]}),
    "GRU with numbers for each way": (
        "GRU",
        "bidirectional",
        False,
        {"activations": ["HardSigmoid", "Tanh", "HardSigmoid", "LeakyRelu"], "activation_alpha": [0.3, 0.25, 0.1],
         "activation_beta": [0.4, 0.6]},
    ),
    "LSTM with a clip": ("LSTM", "bidirectional", True, {"clip": 0.6}),
    "GRU with a clip": ("GRU", "forward", False, {"clip": 0.4, "linear_before_reset": 1}),
    "LSTM that keeps what it does not take": ("LSTM", "forward", True, {"input_forget": 1}),
    "LSTM whose gates see its cell": ("LSTM", "reverse", True, {"peepholes": True}),
    "GRU of shorter sequences, both ways": ("GRU", "bidirectional", True, {"length": 3}),
    "LSTM of shorter sequences": ("LSTM", "forward", False, {"length": 4}),
}  # fmt: skip


def layer(op, direction, stateful, length=None, peepholes=False, **attributes):
    rng = np.random.default_rng(1)

    def weights(*shape):
        return rng.normal(0, 0.4, shape).astype(np.float32)

    ways = 2 if direction == "bidirectional" else 1
    rows = GATES[op] * SIZE
    constants = {"w": weights(ways, rows, WIDTH), "r": weights(ways, rows, SIZE), "b": weights(ways, 2 * rows)}
    states = (["h", "c"] if op == "LSTM" else ["h"]) if stateful else []
    constants |= {name: weights(ways, 1, SIZE) for name in states}
    constants |= {"n": np.asarray([length], np.int32)} if length else {}
    constants |= {"p": weights(ways, 3 * SIZE)} if peepholes else {}
    inputs = ["t", "w", "r", "b", "n" if length else "", *states, *(["p"] if peepholes else [])]
    nodes = [
        helper.make_node("Transpose", ["x"], ["t"], perm=[1, 0, 2]),
        helper.make_node(op, inputs, ["y", "last"], hidden_size=SIZE, direction=direction, **attributes),
    ]
    return net(nodes, {"x": (1, STEPS, WIDTH)}, constants)


@pytest.mark.parametrize("name", LAYERS)
def test_a_layer_agrees_with_onnx_runtime(name, tmp_path):
    op, direction, stateful, attributes = LAYERS[name]
    model = layer(op, direction, stateful, **attributes)
    data = samples(model, count=16)
    agrees(model, data)
    content, truth = quantised(model, data, tmp_path), by_onnx(model, data)
    assert decibels(truth, by_litert(content, data)) > 26
    assert decibels(truth, by_tflm(content, data)) > 26


def test_a_state_of_zeros_costs_no_product():
    with_state, without = lower(layer("GRU", "forward", True)), lower(layer("GRU", "forward", False))
    assert without.counts()["FULLY_CONNECTED"] == with_state.counts()["FULLY_CONNECTED"] - 1


def test_other_activations_are_refused_by_name():
    model = layer("LSTM", "forward", False, activations=["Sigmoid", "Softsign", "Tanh"])
    with pytest.raises(Unsupported, match="LSTM: activation Softsign"):
        lower(model)
