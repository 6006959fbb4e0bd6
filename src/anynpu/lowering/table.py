"""The table of ONNX operators that can be lowered: one small function each, whose docstring is the rule."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import onnx

from anynpu.plugins import registering
from anynpu.tensors import Array

if TYPE_CHECKING:
    from anynpu.lowering.lower import Lowering

Rule = Callable[["Lowering", "Node"], None]
RULES: dict[str, Rule] = {}


class Refused(Exception):
    """This node has no TFLite operators that compute the same; the message says why."""


operator = registering(RULES)
"""Registers the function below as the rule of the named ONNX operators."""


@dataclass(frozen=True)
class Node:
    """One ONNX node: its operator, the names it reads and makes, its attributes as Python values."""

    op: str
    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, proto: onnx.NodeProto) -> Node:
        """Returns the node of its protobuf message."""
        attributes = {item.name: onnx.helper.get_attribute_value(item) for item in proto.attribute}
        texts = {key: value.decode() if isinstance(value, bytes) else value for key, value in attributes.items()}
        name = proto.name or next(iter(proto.output), proto.op_type)
        return cls(proto.op_type, name, tuple(proto.input), tuple(proto.output), texts)

    @property
    def output(self) -> str:
        """The first result."""
        return self.outputs[0]

    def input(self, place: int) -> str:
        """Returns the name of an input, empty where it is left out."""
        return self.inputs[place] if place < len(self.inputs) else ""

    def get(self, name: str, default: Any = None) -> Any:
        """Returns an attribute, or the default where it is not given."""
        return self.attributes.get(name, default)

    def integers(self, name: str, default: list[int]) -> list[int]:
        """Returns an attribute of whole numbers."""
        return [int(value) for value in self.get(name, default)]


def required(array: Array | None, what: str) -> Array:
    """Returns a constant, or refuses the node that needs it to be one."""
    if array is None:
        raise Refused(f"{what} must be stored in the model, not computed at run time")
    return array
