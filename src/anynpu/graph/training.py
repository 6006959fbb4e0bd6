"""Operators that draw random numbers are refused by name; those in training mode are set to inference, with a note.

A chip computes the same answer for the same input. Branches, loop bodies and local functions are read too.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from onnx import FunctionProto, GraphProto, ModelProto, NodeProto, helper, numpy_helper

from anynpu.errors import Finding, Unsupported
from anynpu.graph.fold import RANDOM, constant_value, inner_graphs, names_read
from anynpu.graph.run import Session, random_feeds
from anynpu.tensors import Array

FUSED_DROPOUT = ("BiasDropout", "BitmaskDropout", "BitmaskBiasDropout")
EVALUATION = "export the model in evaluation mode (module.eval() in PyTorch), without random numbers"
_STANDARD = ("", "ai.onnx")


def for_inference(model: ModelProto) -> tuple[ModelProto, tuple[str, ...]]:
    """Returns the model as it computes outside training, and what was changed; random operators are Unsupported."""
    result = ModelProto()
    result.CopyFrom(model)
    local = {(function.domain, function.name): function for function in result.functions}
    walk = _Walk(local)
    versions = {entry.domain: entry.version for entry in result.opset_import}
    walk.graph(result.graph, versions, {})
    if walk.random:
        names = ", ".join(f"{finding.where}: {finding.message}" for finding in walk.random[:3])
        raise Unsupported(f"the model gives other results each time: {names}", walk.random, EVALUATION)
    return result, tuple(walk.notes)


def require_repeatable(model: ModelProto, feeds: Mapping[str, Array] | None = None) -> None:
    """Raises Unsupported where the same input twice does not give the same output."""
    inputs = random_feeds(model, seed=0) if feeds is None else feeds
    session = Session(model)
    first = session.run(inputs)
    # Random operators of a session go on in their sequence; another session may begin with another seed.
    for again in (session.run(inputs), Session(model).run(inputs)):
        for value, one, other in zip(model.graph.output, first, again, strict=True):
            if not np.array_equal(one, other, equal_nan=one.dtype.kind == "f"):
                raise Unsupported(f"output '{value.name}' differs when the same input is run twice", hint=EVALUATION)


@dataclass
class _Walk:
    """One pass over a model: what it finds, and the functions that it has been in."""

    local: Mapping[tuple[str, str], FunctionProto]
    random: list[Finding] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    seen: set[tuple[str, str]] = field(default_factory=set)

    def graph(self, graph: GraphProto, versions: Mapping[str, int], outer: Mapping[str, Array]) -> None:
        constants = {**outer, **{tensor.name: numpy_helper.to_array(tensor) for tensor in graph.initializer}}
        self.body(graph, versions, constants, {value.name for value in graph.output})

    def body(
        self,
        owner: GraphProto | FunctionProto,
        versions: Mapping[str, int],
        constants: dict[str, Array],
        outputs: set[str],
    ) -> None:
        # The tensors that lead to an output
        live = set(outputs)
        for node in reversed(list(owner.node)):
            if live & {*node.output}:
                live |= names_read(node)
        nodes: list[NodeProto] = []
        for node in owner.node:
            nodes.append(node)
            if not live & {*node.output}:
                continue
            value = constant_value(node) if node.op_type == "Constant" else None
            if value is not None:
                constants[node.output[0]] = value
            elif node.op_type == "Identity" and node.input[0] in constants:
                constants[node.output[0]] = constants[node.input[0]]
            nodes += self.node(node, versions, constants, live)
            for inner in inner_graphs(node):
                self.graph(inner, versions, constants)
            self.function((node.domain, node.op_type))
        if len(nodes) > len(owner.node):
            copies = [NodeProto.FromString(node.SerializeToString()) for node in nodes]
            del owner.node[:]
            owner.node.extend(copies)

    def function(self, key: tuple[str, str]) -> None:
        function = self.local.get(key)
        if function is None or key in self.seen:
            return
        self.seen.add(key)
        versions = {entry.domain: entry.version for entry in function.opset_import}
        self.body(function, versions, {}, {*function.output})

    def node(
        self, node: NodeProto, versions: Mapping[str, int], constants: Mapping[str, Array], live: set[str]
    ) -> list[NodeProto]:
        """Judges one node and returns what has to follow it."""
        if (node.domain, node.op_type) in self.local:
            return []
        where = node.name or next(filter(None, node.output), node.op_type)
        version = versions.get("", versions.get("ai.onnx", 1))
        if node.op_type in (*RANDOM, *FUSED_DROPOUT):
            self.random.append(Finding("random-operator", f"{node.op_type} draws random numbers", where))
        elif node.domain in _STANDARD and node.op_type == "Dropout":
            self.dropout(node, where, version, constants)
        elif node.domain in _STANDARD and node.op_type == "BatchNormalization":
            return self.batch_norm(node, where, version, live)
        return []

    def dropout(self, node: NodeProto, where: str, version: int, constants: Mapping[str, Array]) -> None:
        if version < 7:
            if not _attribute(node, "is_test"):
                self.notes.append(f"{where}: Dropout was in training mode and is set to inference: it drops nothing")
            node.op_type = "Identity"  # onnxruntime has no Dropout that old
            del node.attribute[:], node.output[1:]
            return
        if len(node.input) < 3 or not node.input[2]:
            return
        training = constants.get(node.input[2])
        if training is None:
            message = "Dropout is switched to training mode while the model runs"
            self.random.append(Finding("random-operator", message, where))
        elif bool(np.any(training)):
            del node.input[2:]
            self.notes.append(f"{where}: Dropout was in training mode and is set to inference: it drops nothing")

    def batch_norm(self, node: NodeProto, where: str, version: int, live: set[str]) -> list[NodeProto]:
        if version < 7:
            training = not _attribute(node, "is_test")
        else:
            training = bool(_attribute(node, "training_mode")) if version >= 14 else any(node.output[1:])
        if not training:
            return []
        if version < 7 or version >= 14:
            name, value = ("is_test", 1) if version < 7 else ("training_mode", 0)
            others = [type(each).FromString(each.SerializeToString()) for each in node.attribute if each.name != name]
            del node.attribute[:]
            node.attribute.extend([helper.make_attribute(name, value), *others])
        self.notes.append(
            f"{where}: BatchNormalization was in training mode and is set to inference: it uses the stored mean and"
            " variance, not those of the input"
        )
        # Outside training the running mean and variance stay what they are.
        kept = zip(node.output[1:], (node.input[3], node.input[4]) * 2, strict=False)
        copies = [helper.make_node("Identity", [stored], [name]) for name, stored in kept if name in live]
        del node.output[1:]
        return copies


def _attribute(node: NodeProto, name: str) -> int:
    return next((attribute.i for attribute in node.attribute if attribute.name == name), 0)
