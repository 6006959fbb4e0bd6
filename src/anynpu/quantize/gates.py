"""Level gates of an ONNX graph: the channels of x * sigmoid(x) between convolutions are made equally loud.

A rectifier passes a factor on, a SiLU does not: s * silu(x) is not silu(s * x). But it is (s * x) * sigmoid(x), so the
convolution before it takes the factors, a product with their inverses stands before the sigmoid, and the weights behind
the gate take them back. Nothing changes but the use that one scale for all channels makes of its integers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import onnx
from onnx import helper, numpy_helper

from anynpu.quantize.calibration import Dataset
from anynpu.quantize.equalize import Floats, gate_factors
from anynpu.quantize.onnx_functions import Wiring
from anynpu.quantize.smooth import channel_peaks, scale
from anynpu.quantize.whole import Whole

SCALED = "/scaled"
"""What the name of a tensor whose channels have factors ends with."""


@dataclass(frozen=True)
class _Gate:
    """A convolution, the sigmoid of its result, their product, and the convolutions that alone read that."""

    maker: onnx.NodeProto
    sigmoid: onnx.NodeProto
    product: onnx.NodeProto
    readers: tuple[onnx.NodeProto, ...]


def level_gates(model: onnx.ModelProto, data: Dataset) -> Whole:
    """Changes a float model so that the channels of its gates are equally loud where they differ much, and returns what
    stands inside of these gates; what the model computes stays."""
    gates = _gates(model)
    if not gates:
        return Whole(frozenset(), frozenset())
    peaks = channel_peaks(model, {gate.product.output[0]: 1 for gate in gates}, data)
    stored = {tensor.name: tensor for tensor in model.graph.initializer}
    nodes: set[str] = set()
    inside: set[str] = set()
    for gate in gates:
        factors = gate_factors(peaks.peak(gate.product.output[0]))
        if factors is None:
            continue
        scale(stored[gate.maker.input[1]], factors.reshape(-1, *[1] * (len(stored[gate.maker.input[1]].dims) - 1)))
        if len(gate.maker.input) > 2:
            scale(stored[gate.maker.input[2]], factors)
        for reader in gate.readers:
            weights = stored[reader.input[1]]
            scale(weights, _behind(1 / factors, weights))
        nodes |= {_insert(model.graph, gate, factors), gate.sigmoid.name}
        inside |= {gate.sigmoid.input[0], gate.sigmoid.output[0]}
    return Whole(frozenset(nodes), frozenset(inside))


def _gates(model: onnx.ModelProto) -> list[_Gate]:
    wiring = Wiring.of(model.graph)
    uses = Counter(name for node in model.graph.node for name in node.input)
    stored = {tensor.name: tensor for tensor in model.graph.initializer}
    found = []
    for sigmoid in model.graph.node:
        if sigmoid.op_type != "Sigmoid" or not wiring.alone(sigmoid.output[0]):
            continue
        source, product = sigmoid.input[0], wiring.readers[sigmoid.output[0]][0]
        maker = wiring.makers.get(source)
        both = product.op_type == "Mul" and {*product.input} == {source, sigmoid.output[0]}
        result = product.output[0]
        readers = wiring.readers.get(result, [])
        if not both or maker is None or len(wiring.readers[source]) != 2 or {source, result} & wiring.outputs:
            continue
        channels = stored[maker.input[1]].dims[0] if _owns(maker, stored, uses) else 0
        if channels and readers and all(_takes(node, result, channels, stored, uses) for node in readers):
            found.append(_Gate(maker, sigmoid, product, tuple(readers)))
    return found


def _owns(node: onnx.NodeProto, stored: Mapping[str, onnx.TensorProto], uses: Mapping[str, int]) -> bool:
    """Tells whether a node is a convolution with stored weights and bias that nobody else reads."""
    return node.op_type == "Conv" and all(name in stored and uses[name] == 1 for name in node.input[1:])


def _takes(
    node: onnx.NodeProto,
    name: str,
    channels: int,
    stored: Mapping[str, onnx.TensorProto],
    uses: Mapping[str, int],
) -> bool:
    """Tells whether a node is a convolution of these channels, all of them together or each on its own."""
    if not _owns(node, stored, uses) or node.input[0] != name:
        return False
    group = next((item.i for item in node.attribute if item.name == "group"), 1)
    return group == 1 or (group == channels and stored[node.input[1]].dims[1] == 1)


def _behind(factors: Floats, weights: onnx.TensorProto) -> Floats:
    """Returns the factors of input channels in the shape of a convolution's weights."""
    kernel = [1] * (len(weights.dims) - 2)
    if weights.dims[1] == len(factors):
        return factors.reshape(1, -1, *kernel)
    return np.repeat(factors, weights.dims[0] // len(factors)).reshape(-1, 1, *kernel)


def _insert(graph: onnx.GraphProto, gate: _Gate, factors: Floats) -> str:
    """Puts the product with the inverse factors before a sigmoid and returns its name. What has factors gets names of
    its own: the old ones keep what they stood for."""
    infos = {value.name: value for value in graph.value_info}

    def renamed(old: str) -> str:
        value = graph.value_info.add()
        value.CopyFrom(infos[old])
        value.name = old + SCALED
        return str(value.name)

    source, result = gate.sigmoid.input[0], gate.product.output[0]
    inverse = f"{source}/inverse"
    rank = len(infos[source].type.tensor_type.shape.dim)
    values = (1 / factors).astype(np.float32).reshape(1, -1, *[1] * (rank - 2))
    graph.initializer.append(numpy_helper.from_array(values, inverse))
    scaled, behind = renamed(source), renamed(result)
    gate.maker.output[0], gate.product.output[0] = scaled, behind
    gate.product.input[list(gate.product.input).index(source)] = scaled
    for reader in gate.readers:
        reader.input[0] = behind
    place = list(graph.node).index(gate.sigmoid)
    graph.node.insert(place, helper.make_node("Mul", [scaled, inverse], [source], name=f"{source}/restored"))
    return f"{source}/restored"
