"""A float graph that is written anew, operator by operator, for an NPU that lacks some of them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from anynpu.lowering.graph import Graph, Operator, Tensor, free_name, int32
from anynpu.lowering.options import FullyConnected, Options, Reshape
from anynpu.tensors import Array

Resizes = Callable[[Operator, Graph], bool]
"""Tells whether the NPU itself resizes as an operator does."""


@dataclass
class Rewriting:
    """The graph as it is written anew."""

    graph: Graph
    resizes: Resizes
    longest_step: int
    tensors: dict[str, Tensor]
    operators: list[Operator]

    def shape(self, name: str) -> tuple[int, ...]:
        """Returns the shape of a tensor."""
        return self.tensors[name].shape

    def emit(self, kind: str, inputs: Sequence[str], shape: Sequence[int], options: Options | None, stem: str) -> str:
        """Adds an operator and returns its result."""
        name = free_name(stem, self.tensors)
        self.tensors[name] = Tensor(name, tuple(shape), self.tensors[inputs[0]].dtype)
        self.operators.append(Operator(kind, tuple(inputs), (name,), options))
        return name

    def store(self, data: Array, stem: str) -> str:
        """Adds a constant."""
        name = free_name(stem, self.tensors)
        self.tensors[name] = Tensor(name, data.shape, str(data.dtype), data)
        return name

    def reshape(self, tensor: str, shape: Sequence[int], stem: str) -> str:
        """Returns the same values under another shape."""
        size = tuple(shape)
        if self.shape(tensor) == size:
            return tensor
        return self.emit("RESHAPE", (tensor, self.store(int32(size), f"{stem}/shape")), size, Reshape(size), stem)

    def transpose(self, tensor: str, order: Sequence[int], stem: str) -> str:
        """Returns a tensor with its axes in another order."""
        if list(order) == sorted(order):
            return tensor
        shape = [self.shape(tensor)[axis] for axis in order]
        return self.emit("TRANSPOSE", (tensor, self.store(int32(order), f"{stem}/order")), shape, None, stem)

    def multiply(self, tensor: str, matrix: Array, stem: str) -> str:
        """Returns a product of the last axis with a stored matrix (out, in)."""
        *leading, _ = self.shape(tensor)
        rows = self.reshape(tensor, (math.prod(leading), matrix.shape[1]), f"{stem}/rows")
        stored = self.store(np.ascontiguousarray(matrix, np.float32), f"{stem}/matrix")
        bias = self.store(np.zeros(len(matrix), np.float32), f"{stem}/bias")
        product = self.emit(
            "FULLY_CONNECTED", (rows, stored, bias), (math.prod(leading), len(matrix)), FullyConnected(), stem
        )
        return self.reshape(product, (*leading, len(matrix)), stem)

    def give(self, operator: Operator, tensor: str) -> None:
        """Says which tensor is the result of an operator that is replaced."""
        result, place = operator.outputs[0], len(self.operators) - 1
        maker = self.operators[place] if self.operators else None
        if maker is None or maker.outputs != (tensor,) or tensor in self.graph.tensors:
            size = self.shape(result)
            inputs = (tensor, self.store(int32(size), f"{result}/shape"))
            self.operators.append(Operator("RESHAPE", inputs, (result,), Reshape(size)))
        else:
            self.operators[place] = replace(maker, outputs=(result,))
            del self.tensors[tensor]


Rule = Callable[[Rewriting, Operator], bool]
