"""Writes the nodes of ONNX's own that one operator of another domain stands for."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from onnx import ModelProto, NodeProto, helper, numpy_helper

from anynpu.tensors import Array

_AXES_AS_INPUT = {"ReduceMean": 18, "ReduceMax": 18, "ReduceL1": 18, "ReduceL2": 18}
"""The opsets from which an operator reads its axes."""


@dataclass
class Writer:
    """Writes the nodes that one operator stands for."""

    node: NodeProto
    model: ModelProto
    opset: int
    nodes: list[NodeProto] = field(default_factory=list)

    def input(self, place: int) -> str:
        return self.node.input[place] if place < len(self.node.input) else ""

    def result(self, place: int = 0) -> str:
        return self.node.output[place] if place < len(self.node.output) else ""

    def get(self, name: str, default: Any) -> Any:
        stated = next((each for each in self.node.attribute if each.name == name), None)
        value = default if stated is None else helper.get_attribute_value(stated)
        return value.decode() if isinstance(value, bytes) else value

    def stored(self, value: Any, dtype: type = np.float32) -> str:
        """Stores a constant and returns its name."""
        name = f"{self.result()}/stored{len(self.model.graph.initializer)}"
        self.model.graph.initializer.append(numpy_helper.from_array(np.asarray(value, dtype), name))
        return name

    def array(self, name: str) -> Array | None:
        """Returns what is stored under a name, None for a computed tensor."""
        tensor = next((item for item in self.model.graph.initializer if item.name == name), None)
        return None if tensor is None else numpy_helper.to_array(tensor)

    def emit(self, kind: str, *inputs: str, to: str = "", **settings: Any) -> str:
        """Writes one node and returns its result."""
        name = to or f"{self.result()}/{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, list(inputs), [name], name=name, **settings))
        return name

    def cast(self, tensor: str, kind: int, result: str = "") -> str:
        """Writes a change of type and returns its result."""
        name = self.emit("Cast", tensor, to=result)
        self.nodes[-1].attribute.append(helper.make_attribute("to", kind))
        return name

    def reduced(self, kind: str, tensor: str) -> str:
        """Writes a mean, a length or the like over the last axis, which stays."""
        if self.opset >= _AXES_AS_INPUT[kind]:
            return self.emit(kind, tensor, self.stored([-1], np.int64), keepdims=1)
        return self.emit(kind, tensor, axes=[-1], keepdims=1)

    def renamed(self, result: str) -> None:
        """Gives the last node the name of a result of the operator."""
        self.nodes[-1].output[0] = result
