"""Walks through an ONNX graph with the axes of rows and tokens, and writes the graph in which they are free.

An axis is the product of its atoms in row-major order: whole numbers, and the letters B (rows) and L (tokens). So
[B, 128 tokens, 384] reshaped to [128, 384] is [B L, 384], and to [1, 128, 12, 32] again is [B, L, 12, 32].
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from onnx import ModelProto, NodeProto

Atom = int | str
Axis = tuple[Atom, ...]
Shape = list[Axis]
Rule = Callable[["Walk", "NodeProto"], list[Shape]]


class NotLoose(Exception):  # an outcome, not a failure
    """Says what in the graph is fixed."""


def make_node(kind: str, inputs: Sequence[str], outputs: Sequence[str], **attributes: Any) -> NodeProto:
    from onnx import helper

    return helper.make_node(kind, inputs, outputs, **attributes)


class Walk:
    """One walk through a graph; a rule for each operator gives the shapes of its outputs."""

    def __init__(
        self, model: ModelProto, inputs: Sequence[str], letters: Sequence[str], rules: Mapping[str, Rule]
    ) -> None:
        from onnx import numpy_helper, shape_inference

        self._model = shape_inference.infer_shapes(model, data_prop=True)
        graph = self._model.graph
        self.constants = {tensor.name: numpy_helper.to_array(tensor) for tensor in graph.initializer}
        values = [*graph.value_info, *graph.input, *graph.output]
        self.static = {v.name: [d.dim_value for d in v.type.tensor_type.shape.dim] for v in values}
        self.static |= {name: list(array.shape) for name, array in self.constants.items()}
        self.first, self.letters, self.rules = inputs[0], letters, rules
        shape = self.static[inputs[0]]
        self.values = dict(zip(letters, shape, strict=False))
        self.shapes: dict[str, Shape] = {}
        for name in inputs:
            dims = self.static[name]
            self.shapes[name] = [(letters[i],) if i < len(letters) else (dim,) for i, dim in enumerate(dims)]
        self.nodes: list[NodeProto] = []
        self._made: dict[Any, str] = {}

    def model(self) -> ModelProto:
        from onnx import numpy_helper

        graph = self._model.graph
        for node in graph.node:
            self._visit(node)
        for value in (*graph.input, *graph.output):
            shape = self.shapes.get(value.name)
            if shape is None:
                raise NotLoose(f"{value.name} does not depend on the rows")
            if not shape or shape[0] != ("B",) or any("B" in axis for axis in shape[1:]):
                raise NotLoose(f"the first axis of {value.name} is not the rows")
            for dim, axis in zip(value.type.tensor_type.shape.dim, shape, strict=True):
                if any(isinstance(atom, str) for atom in axis):
                    dim.dim_param = "".join(map(str, axis))
        # The nodes that compute the numbers of rows and tokens, where something asks for them.
        sizes = []
        if any(key[0] == "shape" for key in self._made if isinstance(key, tuple)):
            sizes.append(make_node("Shape", [self.first], ["loose_shape"]))
            for place, letter in enumerate(self.letters):
                at = self._constant(np.array([place], np.int64))
                sizes.append(make_node("Gather", ["loose_shape", at], [f"loose_{letter}"]))
        del graph.node[:], graph.value_info[:]
        graph.node.extend(sizes + self.nodes)
        del graph.initializer[:]
        graph.initializer.extend(numpy_helper.from_array(a, n) for n, a in self.constants.items())
        return self._model

    def _visit(self, node: NodeProto) -> None:
        from onnx import numpy_helper

        if node.op_type == "Constant" and node.attribute[0].name == "value":
            self.constants[node.output[0]] = numpy_helper.to_array(node.attribute[0].t)
            self.static[node.output[0]] = list(self.constants[node.output[0]].shape)
            return
        if not any(name in self.shapes for name in node.input):
            self.nodes.append(node)  # made of constants alone
            return
        rule = self.rules.get(node.op_type)
        if rule is None or any(attribute.type == 5 for attribute in node.attribute):
            raise NotLoose(f"{node.op_type} is not known")
        fresh = type(node)()
        fresh.CopyFrom(node)
        shapes = rule(self, fresh)
        self.nodes.append(fresh)
        for name, shape in zip(node.output, shapes, strict=False):
            if name:
                self.shapes[name] = shape
                stated = self.static.get(name)
                sizes = [self.value(axis) for axis in shape]
                if stated is not None and all(stated) and stated != sizes:
                    raise NotLoose(f"{node.op_type} {node.name}: {sizes} was expected, the model has {stated}")

    def value(self, axis: Axis) -> int:
        return math.prod(self.values[atom] if isinstance(atom, str) else atom for atom in axis)

    def shape(self, name: str) -> Shape:
        if name in self.shapes:
            return self.shapes[name]
        if name not in self.static:
            raise NotLoose(f"the shape of {name} is not known")
        return [(dim,) for dim in self.static[name]]

    def numbers(self, name: str) -> list[int]:
        if name not in self.constants:
            raise NotLoose(f"{name} is computed")
        return [int(number) for number in self.constants[name].ravel()]

    def _constant(self, array: Any) -> str:
        key = (str(array.dtype), array.shape, array.tobytes())
        if key not in self._made:
            self._made[key] = f"loose_c{len(self._made)}"
            self.constants[self._made[key]] = array
        return self._made[key]

    def dims(self, shape: Shape) -> str:
        """Returns a tensor that holds a shape."""
        if not any(isinstance(atom, str) for axis in shape for atom in axis):
            return self._constant(np.array([self.value(axis) for axis in shape], np.int64))
        key = ("shape", tuple(shape))
        if key not in self._made:
            self._made[key] = name = f"loose_d{len(self._made)}"
            parts = [self._size(axis) for axis in shape]
            self.nodes.append(make_node("Concat", parts, [name], axis=0))
        return self._made[key]

    def _size(self, axis: Axis) -> str:
        letters = [atom for atom in axis if isinstance(atom, str)]
        number = math.prod(atom for atom in axis if isinstance(atom, int))
        if not letters:
            return self._constant(np.array([number], np.int64))
        key = ("shape", axis)
        if key not in self._made:
            name = f"loose_{letters[0]}"
            factors = [f"loose_{letter}" for letter in letters[1:]]
            factors += [self._constant(np.array([number], np.int64))] if number != 1 else []
            for factor in factors:
                product = f"loose_p{len(self.nodes)}_{len(self._made)}"
                self.nodes.append(make_node("Mul", [name, factor], [product]))
                name = product
            self._made[key] = name
        return self._made[key]

    def part(self, name: str, axis: int, letter: str) -> str:
        """Returns a constant that is as long as the text, cut to the text's length."""
        key = ("part", name, axis)
        if key not in self._made:
            self._made[key] = fresh = f"loose_s{len(self._made)}"
            zero, at = self._constant(np.array([0], np.int64)), self._constant(np.array([axis], np.int64))
            self.nodes.append(make_node("Slice", [name, zero, self._size((letter,)), at], [fresh]))
        return self._made[key]
