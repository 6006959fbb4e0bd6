"""Makes the channels of gates x * sigmoid(x) between convolutions equally loud in a float graph.

s * silu(x) is (s * x) * sigmoid(x): the convolution takes the factors, a product with their inverses stands before the
LOGISTIC, and the weights behind the gate take them back (`quantize/gates.py` does the same to ONNX graphs).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from anynpu.lowering.graph import Graph, Operator, Tensor
from anynpu.lowering.options import Mul
from anynpu.quantize.equalize import ChannelPeaks, Floats, gate_factors

_WEIGHTED = ("CONV_2D", "DEPTHWISE_CONV_2D", "FULLY_CONNECTED")


@dataclass(frozen=True)
class Gate:
    """A gate by the names of its tensors: its argument, what its sigmoid and the gate give, what padding makes of that,
    and the weights before and behind it."""

    source: str
    sigmoid: str
    result: str
    padded: tuple[str, ...]
    before: tuple[str, ...]
    behind: tuple[str, ...]


def find_gates(graph: Graph) -> list[Gate]:
    """Returns the gates that one operator with weights makes and only operators with weights read."""
    makers, readers = graph.makers(), graph.readers()

    def owns(operator: Operator) -> bool:
        stored = [name for name in operator.inputs[1:] if name]
        alone = all(graph.constant(name) is not None and len(readers[name]) == 1 for name in stored)
        return operator.kind in _WEIGHTED and bool(stored) and alone

    def gate(sigmoid: Operator) -> Gate | None:
        source, users = sigmoid.inputs[0], readers.get(sigmoid.outputs[0], [])
        maker = makers.get(source)
        if len(users) != 1 or users[0].kind != "MUL" or {*users[0].inputs} != {source, sigmoid.outputs[0]}:
            return None
        result = users[0].outputs[0]
        inner = {source, sigmoid.outputs[0], result} & {*graph.outputs}
        if maker is None or not owns(maker) or inner or len(readers[source]) != 2 or users[0].activation != "NONE":
            return None
        pads = [user for user in readers.get(result, []) if user.kind == "PAD" and user.inputs[0] == result]
        padded = [pad.outputs[0] for pad in pads]
        behind = [user for name in (result, *padded) for user in readers.get(name, []) if user not in pads]
        channels = graph.tensors[result].shape[-1]
        known = maker.activation == "NONE" and not {*padded} & {*graph.outputs}
        taken = all(owns(user) and graph.tensors[user.inputs[1]].shape[-1] == channels for user in behind)
        if not known or not behind or not taken or any(user.inputs[0] not in (result, *padded) for user in behind):
            return None
        before = tuple(name for name in maker.inputs[1:3] if name)
        names = tuple(user.inputs[1] for user in behind)
        return Gate(source, sigmoid.outputs[0], result, tuple(padded), before, names)

    found = [gate(operator) for operator in graph.operators if operator.kind == "LOGISTIC"]
    return [each for each in found if each is not None]


def level_gates(graph: Graph, gates: list[Gate], peaks: ChannelPeaks) -> tuple[Graph, dict[str, list[float]]]:
    """Returns the graph with level gates where their channels differ much, and the factors by tensor."""
    tensors, factors = dict(graph.tensors), dict[str, list[float]]()
    levels: dict[str, Operator] = {}
    makers = graph.makers()
    for gate in gates:
        each = gate_factors(peaks.peak(gate.result))
        if each is None:
            continue
        first = gate.before[0]
        depthwise = makers[gate.source].kind == "DEPTHWISE_CONV_2D"
        _scale(tensors, first, each if depthwise else each.reshape(-1, *[1] * (len(tensors[first].shape) - 1)))
        for bias in gate.before[1:]:
            _scale(tensors, bias, each)
        for weights in gate.behind:
            _scale(tensors, weights, 1 / each)
        level, inverse = f"{gate.source}/level", f"{gate.source}/inverse"
        shape = (1,) * (len(tensors[gate.source].shape) - 1) + (len(each),)
        tensors[inverse] = Tensor(inverse, shape, "float32", (1 / each).astype(np.float32).reshape(shape))
        tensors[level] = replace(tensors[gate.source], name=level)
        levels[gate.sigmoid] = Operator("MUL", (gate.source, inverse), (level,), Mul())
        factors |= {name: each.tolist() for name in (gate.source, gate.result, *gate.padded)}
    return replace(graph, operators=_with_levels(graph, levels), tensors=tensors), factors


def _scale(tensors: dict[str, Tensor], name: str, factors: Floats) -> None:
    tensors[name] = replace(tensors[name], data=np.asarray(np.asarray(tensors[name].data) * factors, np.float32))


def _with_levels(graph: Graph, levels: Mapping[str, Operator]) -> tuple[Operator, ...]:
    """Returns the operators with the product with the inverse factors before the sigmoid of each level gate."""
    operators: list[Operator] = []
    for operator in graph.operators:
        level = levels.get(operator.outputs[0])
        if level is not None:
            operators += [level, replace(operator, inputs=level.outputs)]
        else:
            operators.append(operator)
    return tuple(operators)
