"""The main graph of a .tflite file with the numbers of its tensors."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from anynpu.errors import IntegrityError
from anynpu.runtime.tflite_file import damage_reported, read_model
from anynpu.targets.flatbuffer import TfliteTensor, operators, stored_form
from anynpu.tensors import Array

ABSENT = -1
"""The number of an optional input that is left out."""


class NotQuantised(IntegrityError):
    """A tensor of numbers that stand for nothing else where a kernel needs a scale."""

    def __init__(self, tensor: TfliteTensor) -> None:
        super().__init__(f"tensor {tensor.name}: is not quantised")
        self.dtype = tensor.dtype


@dataclass(frozen=True)
class Node:
    """One operator; `inputs` and `outputs` are numbers of tensors."""

    index: int
    kind: str
    name: str
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    options: Any
    macs: int
    pads: tuple[int, int] | None = None
    """Rows and columns of padding before the image, where a PAD was folded into the operator."""


@dataclass(frozen=True)
class Graph:
    """Operators in their order, and the tensors that they name by number."""

    nodes: tuple[Node, ...]
    tensors: dict[int, TfliteTensor]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]

    def input(self, node: Node, place: int) -> TfliteTensor:
        """Returns an input that the operator must have."""
        if place >= len(node.inputs) or node.inputs[place] == ABSENT:
            raise IntegrityError(f"{node.kind} {node.name}: input {place} is missing")
        return self.tensors[node.inputs[place]]

    def optional(self, node: Node, place: int) -> TfliteTensor | None:
        """Returns an input that may be left out."""
        if place >= len(node.inputs) or node.inputs[place] == ABSENT:
            return None
        return self.tensors[node.inputs[place]]

    def output(self, node: Node, place: int = 0) -> TfliteTensor:
        """Returns an output."""
        return self.tensors[node.outputs[place]]


def read_graph(path: Path) -> Graph:
    """Returns the main graph of a .tflite file; a damaged file raises."""
    model = read_model(path.read_bytes(), str(path))
    main = model.subgraphs[0]
    tensors: dict[int, TfliteTensor] = {}
    nodes = []
    with damage_reported(str(path)):
        for op, raw in zip(operators(path), main.operators, strict=True):
            reads, makes = tuple(raw.inputs), tuple(raw.outputs)
            for number, tensor in zip(reads + makes, op.inputs + op.outputs, strict=True):
                if tensor is not None:
                    tensors[number] = tensor
            nodes.append(Node(op.index, op.custom_code or op.kind, op.name, reads, makes, op.options, op.macs))
        inputs, outputs = tuple(main.inputs), tuple(main.outputs)
        # An input that no operator reads is fed all the same.
        tensors |= {number: stored_form(model, number) for number in set(inputs) - set(tensors)}
    if unmade := sorted(set(outputs) - set(tensors)):
        raise IntegrityError(f"{path}: output {unmade[0]} belongs to no operator")
    return Graph(tuple(nodes), tensors, inputs, outputs)


def values(tensor: TfliteTensor) -> Array:
    """Returns the constant values of a tensor in its shape."""
    if tensor.data is None:
        raise IntegrityError(f"tensor {tensor.name}: has no constant values")
    return tensor.data.reshape(tensor.shape)


def scale_of(tensor: TfliteTensor) -> float:
    """Returns the one scale of a tensor."""
    if len(tensor.scale) == 0:
        raise NotQuantised(tensor)
    return tensor.scale[0]


def zero_of(tensor: TfliteTensor) -> int:
    """Returns the one zero point of a tensor."""
    return tensor.zero_point[0] if tensor.zero_point else 0
