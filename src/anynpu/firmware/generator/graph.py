"""The main graph of a .tflite file with the numbers of its tensors."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from anynpu.errors import IntegrityError
from anynpu.targets.flatbuffer import TfliteOperator, TfliteTensor, operators
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
    from ai_edge_litert import schema_py_generated as schema

    found = operators(path)
    tensors: dict[int, TfliteTensor] = {}
    try:
        main = schema.Model.GetRootAs(path.read_bytes(), 0).Subgraphs(0)
        nodes = tuple(_node(op, main.Operators(i), tensors) for i, op in enumerate(found))
        inputs = tuple(main.Inputs(i) for i in range(main.InputsLength()))
        outputs = tuple(main.Outputs(i) for i in range(main.OutputsLength()))
    except (struct.error, IndexError, TypeError, ValueError, AttributeError) as error:
        raise IntegrityError(f"{path}: is a damaged TFLite file ({error})") from None
    unused = sorted(set(inputs + outputs) - set(tensors))
    if unused:
        raise IntegrityError(f"{path}: input or output {unused[0]} belongs to no operator")
    return Graph(nodes, tensors, inputs, outputs)


def _node(op: TfliteOperator, raw: Any, tensors: dict[int, TfliteTensor]) -> Node:
    inputs = tuple(raw.Inputs(i) for i in range(raw.InputsLength()))
    outputs = tuple(raw.Outputs(i) for i in range(raw.OutputsLength()))
    for number, tensor in zip(inputs + outputs, op.inputs + op.outputs, strict=True):
        if tensor is not None:
            tensors[number] = tensor
    return Node(op.index, op.custom_code or op.kind, op.name, inputs, outputs, op.options, op.macs)


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
