"""Rectifiers that onnxruntime's quantiser drops, because it takes the ends of the stored integers for theirs."""

from __future__ import annotations

import math
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass

import numpy as np
from onnx import ModelProto, NodeProto, TensorProto, numpy_helper

_BORDER = "_QuantizeLinear_Input"
"""How the quantiser names what it quantises for a result of the graph."""


@dataclass(frozen=True)
class Rectifiers:
    """The rectifiers of a float model by their results, and their bounds."""

    nodes: Mapping[str, NodeProto]
    bounds: Mapping[str, TensorProto]

    @staticmethod
    def of(model: ModelProto) -> Rectifiers:
        nodes = [deepcopy(node) for node in model.graph.node if node.op_type in ("Relu", "Clip")]
        names = {name for node in nodes for name in node.input[1:]}
        bounds = {item.name: deepcopy(item) for item in model.graph.initializer if item.name in names}
        return Rectifiers({node.output[0]: node for node in nodes}, bounds)


def put_back(quantised: ModelProto, rectifiers: Rectifiers, paired: bool = False, all_of_them: bool = False) -> None:
    """Puts rectifiers back where the integers of the quantised form reach beyond them, or `all_of_them`; with `paired`
    what they read is rounded to the same integers, for chips that take no operator without a pair before it.

    They do where a scale and zero point are stated, and where the bounds of a Clip are computed.
    """
    graph, stored = quantised.graph, rectifiers.bounds
    constants = {**stored, **{tensor.name: tensor for tensor in graph.initializer}}
    makers = {name: node for node in graph.node for name in node.output}
    left = {node.name for node in graph.node}
    dropped = {name: node for name, node in rectifiers.nodes.items() if node.name not in left}
    for quantise in [node for node in graph.node if node.op_type == "QuantizeLinear"]:
        name = quantise.input[0]
        rectifier, maker = dropped.get(name.removesuffix(_BORDER)), makers.get(name)
        if rectifier is None or maker is None:
            continue
        if not all_of_them and not reaches_beyond(quantise, rectifier, constants):
            continue
        again = deepcopy(rectifier)
        again.input[0], again.output[0] = f"{name}/unbounded", name
        maker.output[list(maker.output).index(name)] = again.input[0]
        present = {tensor.name for tensor in graph.initializer}
        graph.initializer.extend(stored[each] for each in again.input[1:] if each in stored and each not in present)
        if paired:
            before = deepcopy(quantise)
            before.name, before.input[0], before.output[0] = f"{name}/rounds", again.input[0], f"{name}/rounded"
            after = deepcopy(before)
            after.op_type, after.name = "DequantizeLinear", f"{name}/reads"
            after.input[0], after.output[0] = before.output[0], f"{name}/bounded"
            again.input[0] = after.output[0]
            graph.node.extend([before, after])
        graph.node.append(again)


def reaches_beyond(quantise: NodeProto, rectifier: NodeProto, constants: Mapping[str, TensorProto]) -> bool:
    """Tells whether the stored integers have room outside of the bounds of a rectifier, or those are not known."""
    bounds = [0.0, math.inf] if rectifier.op_type == "Relu" else [-math.inf, math.inf]
    for place, name in enumerate(rectifier.input[1:]):
        if name and name not in constants:
            return True
        if name:
            bounds[place] = float(numpy_helper.to_array(constants[name]).reshape(-1)[0])
    scale, zero = (numpy_helper.to_array(constants[name]) for name in quantise.input[1:3])
    ends, step = np.iinfo(zero.dtype), float(scale.reshape(-1)[0])
    lowest, highest = ((end - int(zero.reshape(-1)[0])) * step for end in (int(ends.min), int(ends.max)))
    return lowest < bounds[0] - step / 2 or highest > bounds[1] + step / 2
