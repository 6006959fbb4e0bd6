"""The operator table: one function an ONNX operator, and what such a function is given."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
import onnx
import torch

H = TypeVar("H", bound=Callable[..., Any])

# A handler is called on real tensors (folding), on meta tensors (shapes) and on fx proxies (recording).
OPERATORS: dict[str, Callable[..., torch.Tensor | Sequence[torch.Tensor]]] = {}


class Refused(Exception):
    """This node cannot be imported exactly; the message says why."""


def operator(*names: str) -> Callable[[H], H]:
    """Registers the function below as the import of the named ONNX operators; its docstring goes to the docs."""

    def register(handler: H) -> H:
        for name in names:
            OPERATORS[name] = handler
        return handler

    return register


def same(name: str, function: Callable[..., Any], sentence: str) -> None:
    """Registers a function of torch that does with its operands just what the ONNX operator does."""

    @operator(name)
    def handler(node: Node, *operands: Any) -> Any:
        return function(*operands)

    handler.__doc__ = sentence


@dataclass(frozen=True)
class Value:
    """What is known of one tensor of the graph at import time; a constant carries its contents."""

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    constant: np.ndarray[Any, Any] | None = None
    trainable: bool = False


@dataclass(frozen=True)
class Node:
    """One ONNX node with what is known of its inputs; handlers ask it for attributes, shapes and constant operands."""

    proto: onnx.NodeProto
    opset: int
    values: tuple[Value | None, ...]
    constant: Callable[[np.ndarray[Any, Any]], torch.Tensor]
    attributes: dict[str, Any] = field(default_factory=dict)

    @property
    def op(self) -> str:
        """The operator's name."""
        return self.proto.op_type

    def has(self, index: int) -> bool:
        """Whether the optional input is given."""
        return index < len(self.values) and self.values[index] is not None

    def value(self, index: int) -> Value:
        """The input of that number, which must be given."""
        value = self.values[index] if index < len(self.values) else None
        if value is None:
            raise Refused(f"input {index} of {self.op} is missing")
        return value

    def shape(self, index: int = 0) -> tuple[int, ...]:
        """The shape of an input."""
        return self.value(index).shape

    def rank(self, index: int = 0) -> int:
        """The number of dimensions of an input."""
        return len(self.shape(index))

    def is_constant(self, index: int) -> bool:
        """Whether an input is given and known at import time."""
        return self.has(index) and self.value(index).constant is not None

    def array(self, index: int) -> np.ndarray[Any, Any]:
        """The contents of a constant input."""
        constant = self.value(index).constant
        if constant is None:
            raise Refused(f"input {index} of {self.op} is computed at run time; it must be a constant")
        return constant

    def ints(self, index: int) -> list[int]:
        """The contents of a constant integer input as Python ints."""
        return [int(item) for item in self.array(index).reshape(-1)]

    def number(self, index: int) -> int | float | bool:
        """The contents of a constant input with one element as a Python number."""
        array = self.array(index)
        if array.size != 1:
            raise Refused(f"input {index} of {self.op} has {array.size} elements; it must have one")
        number: int | float | bool = array.reshape(-1)[0].item()
        return number

    def get(self, name: str, default: Any = None) -> Any:
        """An attribute, or the default if it is not given."""
        return self.attributes.get(name, default)

    def axis(self, default: int, index: int = 0, name: str = "axis") -> int:
        """The attribute `axis`, counted from the front."""
        return front(int(self.get(name, default)), self.rank(index))

    def axes(self, index: int = 1) -> list[int] | None:
        """The axes of a reduction or (un)squeeze, an attribute in older opsets and an input in newer ones."""
        if "axes" in self.attributes:
            return [int(axis) for axis in self.attributes["axes"]]
        return self.ints(index) if self.has(index) else None

    def only(self, name: str, *allowed: Any, default: Any = None) -> None:
        """Refuses the node unless the attribute has one of the values that are exact."""
        value = self.get(name, allowed[0] if default is None else default)
        if value not in allowed:
            raise Refused(f"{self.op} with {name}={value} has no exact equivalent in torch")


def front(axis: int, rank: int) -> int:
    """Returns the axis counted from the front, refusing one that is out of range."""
    if not -rank <= axis < max(rank, 1):
        raise Refused(f"axis {axis} does not exist in a tensor of {rank} dimensions")
    return axis % rank if rank else 0
