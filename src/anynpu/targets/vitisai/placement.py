"""The receipt of a build, predicted: which operators AMD's list promises to the NPU."""

from __future__ import annotations

import numpy as np
from onnx import ModelProto, TensorProto, numpy_helper

from anynpu.artifact import OperatorPlacement, Placement
from anynpu.drivers.ryzen_facts import Precision
from anynpu.errors import AnyNpuError
from anynpu.graph.cost import constant_names, cost
from anynpu.targets.vitisai.form import PAIR, cast_to
from anynpu.targets.vitisai.rules import off_the_list

SOURCE = "predicted from AMD's list of operators; a run on the device reads the real placement"


def placement(model: ModelProto, npu: str, precision: Precision) -> Placement:
    """Returns where every operator of the made model runs as far as AMD's list tells."""
    plain = without_pairs(model)
    try:
        macs = {node.name: node.macs for node in cost(plain).nodes}
    except AnyNpuError:
        macs = {}  # shapes are not known
    constants = constant_names(plain.graph)
    placed = []
    for node in plain.graph.node:
        if not set(node.output) <= constants:
            reason, name = off_the_list(node, precision), node.name or node.output[0]
            placed.append(OperatorPlacement(name, node.op_type, "cpu" if reason else "npu", reason, macs.get(name)))
    return Placement(npu, tuple(placed), SOURCE)


def without_pairs(model: ModelProto) -> ModelProto:
    """Returns the model as float operators alone: quantised pairs and casts to bfloat16 fold into their neighbours."""
    kept = ModelProto()
    kept.CopyFrom(model)
    graph = kept.graph
    casts = [n for n in model.graph.node if n.op_type == "Cast" and cast_to(n) == TensorProto.BFLOAT16]
    rounded = {node.output[0] for node in casts}
    alias: dict[str, str] = {}
    nodes = []
    for node in model.graph.node:
        cast = node.op_type == "Cast"
        if node.op_type in PAIR or (cast and (cast_to(node) == TensorProto.BFLOAT16 or node.input[0] in rounded)):
            alias[node.output[0]] = alias.get(node.input[0], node.input[0])
        else:
            nodes.append(node)
    # What the last pair gave is the output: its producer takes over the name.
    ends = {alias[value.name]: value.name for value in graph.output if value.name in alias}
    del graph.node[:], graph.value_info[:]  # shapes are inferred anew
    for node in nodes:
        twin = graph.node.add()
        twin.CopyFrom(node)
        del twin.input[:], twin.output[:]
        sources = [alias.get(name, name) for name in node.input]
        twin.input.extend(ends.get(name, name) for name in sources)
        twin.output.extend(ends.get(name, name) for name in node.output)
    folded = set(alias.values())
    # Which floats a constant holds does not matter here.
    floats = [
        numpy_helper.from_array(np.zeros(t.dims, np.float32), t.name) if t.name in folded else t
        for t in model.graph.initializer
    ]
    del graph.initializer[:]
    graph.initializer.extend(floats)
    return kept
