"""GroupNormalization as opsets 18 to 20 had it, with a scale and a bias for each group, which the checker refuses."""

from __future__ import annotations

import numpy as np
from onnx import ModelProto, NodeProto, helper, numpy_helper

from anynpu.graph.attributes import attribute
from anynpu.graph.opset import STANDARD

_FIRST, _NEXT = 18, 21
"""The opsets with and without it."""


def write_groups(model: ModelProto) -> None:
    """Writes such a normalisation of a model as one of instances whose channels are its groups."""
    versions = [item.version for item in model.opset_import if item.domain in STANDARD]
    if not versions or not _FIRST <= min(versions) < _NEXT:
        return
    nodes = list[NodeProto]()
    for node in model.graph.node:
        known = node.op_type == "GroupNormalization" and node.domain in STANDARD
        nodes += as_instances(model, node) if known else [node]
    if len(nodes) > len(model.graph.node):
        copies = [NodeProto.FromString(node.SerializeToString()) for node in nodes]
        del model.graph.node[:]
        model.graph.node.extend(copies)


def as_instances(model: ModelProto, node: NodeProto) -> list[NodeProto]:
    """Returns one such normalisation as nodes of a model that gets the shape of its groups."""
    source, result = node.input[0], node.output[0]
    shape, grouped, normal, back = (f"{result}/{part}" for part in ("groups", "grouped", "normal", "shape"))
    stored = np.array([0, attribute(node, "num_groups", 1), -1], np.int64)
    model.graph.initializer.append(numpy_helper.from_array(stored, shape))
    inputs, epsilon = [grouped, *node.input[1:]], attribute(node, "epsilon", 1e-5)
    return [
        helper.make_node("Reshape", [source, shape], [grouped]),
        helper.make_node("InstanceNormalization", inputs, [normal], name=node.name, epsilon=epsilon),
        helper.make_node("Shape", [source], [back]),
        helper.make_node("Reshape", [normal, back], [result]),
    ]
