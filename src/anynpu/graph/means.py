"""Means and variances that exporters write by way of sums: small differences of large numbers, which integers lose.

flax and others write the variance as the mean of squares less the square of the mean, each a sum over a number. What
comes as a `.tflite` file has the same done by `lowering/squares.py`.
"""

from __future__ import annotations

import math

import numpy as np
from onnx import ModelProto, NodeProto, helper, numpy_helper

from anynpu.graph.attributes import attribute, numbers
from anynpu.graph.fold import copied, with_nodes
from anynpu.graph.idle import Known
from anynpu.graph.opset import STANDARD, opset_of
from anynpu.graph.passes import Pass
from anynpu.graph.shapes import infer

_AXES_AS_INPUT = 18
"""The opset from which ReduceMean reads its axes."""
# A count and its inverse, each rounded to seven digits.
_CLOSE = 1e-6


class _Graph:
    """A model, who makes each of its tensors, and constants that join it."""

    def __init__(self, model: ModelProto) -> None:
        self.model, self.known = copied(model), Known.of(model)
        self.makers = {name: node for node in self.model.graph.node for name in node.output if node.domain in STANDARD}

    def maker(self, name: str, *kinds: str) -> NodeProto | None:
        maker = self.makers.get(name)
        return maker if maker is not None and maker.op_type in kinds else None

    def axes(self, node: NodeProto) -> tuple[int, ...] | None:
        """Returns the axes of a reduction, counted from the front; None where they are not stored."""
        shape = self.known.shapes.get(node.input[0])
        stated = self.known.constant(node, 1) if len(node.input) > 1 else np.asarray(numbers(node, "axes"))
        if shape is None or stated is None or not stated.size:
            return None
        return tuple(sorted(int(axis) % len(shape) for axis in stated))

    def number(self, node: NodeProto, place: int) -> float | None:
        """Returns the one number that an operand is, or None."""
        stored = self.known.constant(node, place)
        return float(stored.reshape(-1)[0]) if stored is not None and stored.size == 1 else None

    def stored(self, name: str, values: object) -> str:
        self.model.graph.initializer.append(numpy_helper.from_array(np.asarray(values, np.int64), name))
        return name

    def mean(self, source: str, axes: tuple[int, ...], keepdims: int, result: str) -> NodeProto:
        """Returns a node for the mean of a tensor."""
        if opset_of(self.model) < _AXES_AS_INPUT:
            return helper.make_node("ReduceMean", [source], [result], axes=list(axes), keepdims=keepdims)
        inputs = [source, self.stored(f"{result}/axes", axes)]
        return helper.make_node("ReduceMean", inputs, [result], keepdims=keepdims)

    def kept(self, like: NodeProto, source: str, kept: str, result: str) -> list[NodeProto]:
        """Returns nodes for the mean of a tensor over the axes of another mean, once with these axes and once as the
        other has them."""
        axes, shape = self.axes(like), self.known.shapes[like.output[0]]
        assert axes is not None
        again = [kept, self.stored(f"{result}/shape", shape)]
        return [self.mean(source, axes, 1, kept), helper.make_node("Reshape", again, [result])]

    def square_of(self, name: str) -> str:
        """Returns what a tensor is the square of, or nothing."""
        square = self.maker(name, "Mul", "Pow")
        if square is None:
            return ""
        twice = square.input[0] == square.input[1] if square.op_type == "Mul" else self.number(square, 1) == 2
        return square.input[0] if twice else ""

    def mean_of_variance(self, node: NodeProto) -> NodeProto | None:
        """Returns the mean of x where a node is the mean of x * x less the square of the mean of x."""
        if node.op_type != "Sub" or node.domain not in STANDARD:
            return None
        squares = self.maker(node.input[0], "ReduceMean")
        mean = self.maker(self.square_of(node.input[1]), "ReduceMean")
        if squares is None or mean is None or self.square_of(squares.input[0]) != mean.input[0]:
            return None
        settings = [(self.axes(each), attribute(each, "keepdims", 1)) for each in (squares, mean)]
        return mean if settings[0] == settings[1] and settings[0][0] is not None else None


def with_means(model: ModelProto) -> tuple[ModelProto, int]:
    """Returns the model with means for sums over the number of what is added, and how many."""
    at, nodes, changed = _Graph(model), list[NodeProto](), 0
    for node in at.model.graph.node:
        place = next((each for each in (0, 1) if node.op_type == "Mul" and at.number(node, each) is not None), 1)
        total = at.maker(node.input[1 - place], "ReduceSum") if node.op_type in ("Mul", "Div") else None
        axes, factor = (at.axes(total), at.number(node, place)) if total is not None else (None, None)
        if total is None or axes is None or not factor or node.domain not in STANDARD:
            nodes.append(node)
            continue
        count = math.prod(at.known.shapes[total.input[0]][axis] for axis in axes)
        same = at.known.shapes.get(node.output[0]) == at.known.shapes.get(total.output[0])
        if not same or abs((factor if node.op_type == "Mul" else 1 / factor) * count - 1) > _CLOSE:
            nodes.append(node)
            continue
        nodes.append(at.mean(total.input[0], axes, int(attribute(total, "keepdims", 1)), node.output[0]))
        changed += 1
    return (with_nodes(at.model, nodes), changed) if changed else (model, 0)


def with_variances(model: ModelProto) -> tuple[ModelProto, int]:
    """Returns the model with means of squared differences for means of squares less squared means, and how many."""
    at, nodes = _Graph(model), list[NodeProto]()
    variances, heirs = set[str](), dict[str, str]()
    results = {value.name for value in model.graph.output}
    for node in at.model.graph.node:
        node.input[:] = [heirs.get(name, name) for name in node.input]
        bounds = [at.number(node, place) for place, name in enumerate(node.input) if name not in variances]
        least = bounds[0] if node.op_type == "Max" and len(bounds) == len(node.input) - 1 == 1 else None
        if least is not None and least <= 0 and not {*node.output} & results:  # squares are above it anyway
            heirs[node.output[0]] = next(name for name in node.input if name in variances)
            continue
        mean = at.mean_of_variance(node)
        if mean is None:
            nodes.append(node)
            continue
        (place,) = (place for place, each in enumerate(nodes) if each is mean)
        source, result = mean.input[0], node.output[0]
        average, apart, squared = (f"{result}/{part}" for part in ("mean", "apart", "squared"))
        nodes[place : place + 1] = at.kept(mean, source, average, mean.output[0])
        nodes.append(helper.make_node("Sub", [source, average], [apart]))
        nodes.append(helper.make_node("Mul", [apart, apart], [squared]))
        nodes += at.kept(mean, squared, f"{result}/kept", result)
        variances.add(result)
    # Passes behind this one ask for the shapes of the new tensors.
    return (infer(with_nodes(at.model, nodes), strict=False), len(variances)) if variances else (model, 0)


MEANS = Pass("means", "sums over the number of what is added become means", with_means)
VARIANCES = Pass("variances", "means of squares less squared means become means of squared differences", with_variances)
