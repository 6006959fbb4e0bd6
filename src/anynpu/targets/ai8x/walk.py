"""A walk through an ONNX graph: what each tensor is so far, and the layers that have come of it."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from onnx import ModelProto, NodeProto, numpy_helper

from anynpu.errors import Finding
from anynpu.graph.fold import static_shapes
from anynpu.graph.shapes import infer, inputs_of
from anynpu.runtime.ai8x import INPUT, Pool
from anynpu.targets.ai8x.blocks import Block, Blocks, Shape
from anynpu.tensors import Array


@dataclass(frozen=True)
class Value:
    """A tensor while the graph is walked: the layer that makes it, and a window or flattening still to come."""

    layer: int
    shape: Shape
    pool: Pool | None = None
    flat: bool = False
    window: str = ""
    """The graph's tensor that an average to come makes."""

    @property
    def plain(self) -> bool:
        """Whether no window is to come, or one that only leaves values out: what works on each value may come first."""
        return self.pool is None or self.pool.size == (1, 1)


class Misfit(Exception):
    """An operator, as it stands, is nothing that the accelerator does."""

    def __init__(self, rule: str, message: str) -> None:
        super().__init__(message)
        self.rule = rule


class Walk:
    """Goes through the nodes in order and keeps what each tensor is."""

    def __init__(self, model: ModelProto) -> None:
        graph = model.graph
        self.constants: dict[str, Array] = {t.name: numpy_helper.to_array(t) for t in graph.initializer}
        self.shapes = static_shapes(infer(model, strict=False).graph)
        self.outputs = [value.name for value in graph.output]
        self.uses: dict[str, int] = {}
        for node in graph.node:
            for name in node.input:
                self.uses[name] = self.uses.get(name, 0) + 1
        self.inputs = [value.name for value in inputs_of(model)]
        first = self.inputs[0] if self.inputs else ""
        shape = chw(self.shapes.get(first, ())) or (1, 1, 1)
        self.blocks = Blocks(first, shape, [])
        self.values = {first: Value(INPUT, shape, flat=len(self.shapes.get(first, ())) == 2)}

    def borders(self) -> list[Finding]:
        """Returns what is wrong with the inputs and outputs."""
        findings = []
        for what, names in (("input", self.inputs), ("output", self.outputs)):
            if len(names) != 1:
                findings.append(
                    Finding(f"one_{what}", f"The network has {len(names)} {what}s; the accelerator has one.")
                )
        for name in (*self.inputs[:1], *self.outputs[:1]):
            shape = self.shapes.get(name, ())
            if chw(shape) is None:
                words = "The shape must be fixed: a batch of one, then features, a signal or an image."
                findings.append(Finding("static_shapes", words, name))
        return findings

    def finish(self) -> list[Finding]:
        """Gives the output a layer of its own where a window is still to come."""
        last = self.outputs[0] if self.outputs else ""
        value = self.values.get(last)
        if value is None:
            return []
        if value.pool is not None:
            value = self.settle(value, last)
        if not self.blocks.blocks or value.layer != len(self.blocks.blocks) - 1:
            return [Finding("last_layer", "The output must be the last layer's result.", last)]
        return []

    def value(self, node: NodeProto, index: int = 0) -> Value:
        """Returns what the node's input is."""
        value = self.values.get(node.input[index])
        if value is None:
            raise Misfit("constant", "Its data are constant: fold it before the export.")
        return value

    def constant(self, node: NodeProto, index: int) -> Array | None:
        """Returns the node's constant input, or None where there is none at that place."""
        if index >= len(node.input) or not node.input[index]:
            return None
        if node.input[index] not in self.constants:
            raise Misfit("weights", "Its weights are computed, not constant.")
        return np.asarray(self.constants[node.input[index]], np.float64)

    def put(self, node: NodeProto, value: Value) -> None:
        """Says what the node's output is."""
        self.values[node.output[0]] = value

    def add(self, node: NodeProto, block: Block) -> None:
        """Appends a layer that makes the node's output."""
        self.blocks.blocks.append(block)
        self.put(node, Value(len(self.blocks.blocks) - 1, block.output, flat=block.operation == "linear"))

    def own(self, node: NodeProto, index: int = 0) -> Block | None:
        """Returns the layer that makes the node's input, if nothing else reads it and it has no activation yet."""
        name, value = node.input[index], self.value(node, index)
        if value.layer == INPUT or self.uses[name] != 1 or name in self.outputs:
            return None
        block = self.blocks.blocks[value.layer]
        return block if block.activation == "none" and block.weight is not None else None

    def summed(self, node: NodeProto) -> Block | None:
        """Returns the sum that makes the node's input, if nothing else reads it, as a layer with the identity."""
        name, value = node.input[0], self.value(node)
        block = None if value.layer == INPUT else self.blocks.blocks[value.layer]
        if block is None or len(block.sources) < 2 or block.weight is not None or self.uses[name] != 1:
            return None
        if value.pool is not None or name in self.outputs:
            return None
        block.operation, block.sum = "conv2d", block.tensor
        block.weight, block.bias = np.eye(block.input[0])[:, :, None, None], np.zeros(block.input[0])
        return block

    def settle(self, value: Value, tensor: str) -> Value:
        """Returns the value after a layer that does nothing but its window."""
        name = tensor.strip("/").removesuffix("_output_0")
        before = self.blocks.shape_of(value.layer)
        block = Block(name, "passthrough", (value.layer,), before, value.shape, tensor, pool=value.pool)
        block.window = value.window
        self.blocks.blocks.append(block)
        return replace(value, layer=len(self.blocks.blocks) - 1, pool=None, window="")


def chw(shape: tuple[int, ...]) -> Shape | None:
    """Returns channels, rows and columns of a batch of one, or None where the shape has none."""
    if not 2 <= len(shape) <= 4 or shape[0] != 1 or 0 in shape:
        return None
    return (shape[1], shape[2] if len(shape) > 2 else 1, shape[3] if len(shape) > 3 else 1)
