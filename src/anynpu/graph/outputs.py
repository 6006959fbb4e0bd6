"""Makes outputs of their own of the parts of an output that are too different in range for one scale.

A detector that puts boxes of 0 to 640 and scores of 0 to 1 into one tensor loses every score to eight bits. Where the
output is put together along an axis, the cut goes back through what only moves values (`Concat` along another axis,
`Transpose`, `Reshape`) to the tensors that were put together, and these are the outputs. The ranges are those of seeded
random inputs: a model has the same outputs whatever it is calibrated with.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from onnx import ModelProto, NodeProto, TensorProto, ValueInfoProto, helper, numpy_helper

from anynpu.errors import IntegrityError, Unsupported
from anynpu.graph.attributes import attribute, numbers
from anynpu.graph.fold import initializer_names, names_read, needed_nodes, with_nodes
from anynpu.graph.proof import random_probes
from anynpu.graph.run import Session
from anynpu.graph.shapes import VIEWS, infer, maker_behind, tensor_shapes
from anynpu.tensors import Array

FEWEST_STEPS = 8
"""Neighbours of which one is left fewer of the 256 steps of the other are outputs of their own."""
_STEPS = 256
_PROBES = 3
_MOST_PIECES, _MOST_PARTS = 64, 8
_MOVING = (*VIEWS, "Transpose", "Identity")


@dataclass(frozen=True)
class Part:
    """Places of a tensor along an axis: an output of its own, or what is divided further."""

    start: int
    stop: int
    reach: float
    tensor: str
    name: str = ""
    inner: Division | None = None

    def __str__(self) -> str:
        places = f"places {self.start}..{self.stop - 1}"
        if self.inner is not None:
            return f"{places} as {self.inner}"
        return f"{self.name} ({places}, to {self.reach:.3g})"


@dataclass(frozen=True)
class Division:
    """A tensor as its parts along an axis; `stands_for` is the shape of what is a reshaped form of it."""

    shape: tuple[int, ...]
    axis: int
    parts: tuple[Part, ...]
    stands_for: tuple[int, ...]

    def __str__(self) -> str:
        return f"{list(self.shape)} along axis {self.axis}: {', '.join(map(str, self.parts))}"

    def leaves(self) -> Iterator[Part]:
        """Yields the parts that are outputs."""
        for part in self.parts:
            yield from (part,) if part.inner is None else part.inner.leaves()

    def named(self, names: Iterator[str]) -> Division:
        """Returns the division with names for its outputs."""
        parts = (
            replace(part, name=next(names)) if part.inner is None else replace(part, inner=part.inner.named(names))
            for part in self.parts
        )
        return replace(self, parts=tuple(parts))

    def joined(self, values: Mapping[str, Array]) -> Array:
        """Returns the values of the whole, of several samples, from those of the parts."""
        pieces = [values[part.name] if part.inner is None else part.inner.joined(values) for part in self.parts]
        whole = np.concatenate(pieces, self.axis + 1)
        return np.asarray(whole.reshape(len(whole), *self.stands_for))


def apart(model: ModelProto) -> tuple[ModelProto, tuple[str, ...]]:
    """Returns the model with such parts as outputs, and a note for each output that was taken apart."""
    joined = _joined_outputs(model)
    if not joined:
        return model, ()
    cutter = _Cutter(model)
    try:
        probes = random_probes(model)[:_PROBES]
        answers = _answers(model, probes)
    except (IntegrityError, Unsupported):  # it runs on samples, not on random numbers
        return model, ()
    whole = {name: _divided(cutter, name, answers[name]) for name in joined if np.isfinite(answers[name]).all()}
    divisions = {
        name: division.named(cutter.free(f"{name}_{at}") for at in itertools.count())
        for name, division in whole.items()
        if division is not None
    }
    if not divisions:
        return model, ()
    outputs: list[ValueInfoProto] = []
    for value in model.graph.output:
        division = divisions.get(value.name)
        outputs += [value] if division is None else [cutter.output(part) for part in division.leaves()]
    result = cutter.model_with(outputs)
    pieces = _answers(result, probes)
    if not all(np.array_equal(division.joined(pieces), answers[name]) for name, division in divisions.items()):
        return model, ()
    return result, tuple(
        f"output {name} puts values of different range together, of which 8 bits with one scale lose the smaller; they "
        f"are outputs of their own, {division}; --keep-outputs leaves it whole"
        for name, division in divisions.items()
    )


def _joined_outputs(model: ModelProto) -> list[str]:
    """Returns the outputs of real numbers that are put together, or are moved forms of what is."""
    makers, names = {name: node for node in model.graph.node for name in node.output}, []
    for value in model.graph.output:
        node = maker_behind(value.name, makers, _MOVING)
        if node is not None and node.op_type == "Concat" and value.type.tensor_type.elem_type == TensorProto.FLOAT:
            names.append(value.name)
    return names


def _answers(model: ModelProto, probes: Sequence[Mapping[str, Array]]) -> dict[str, Array]:
    """Returns the outputs of a model for all probes, by name."""
    session = Session(model)
    outputs = zip(*(session.run(feeds) for feeds in probes), strict=True)
    return {value.name: np.stack(each) for value, each in zip(model.graph.output, outputs, strict=True)}


def _divided(cutter: _Cutter, tensor: str, values: Array) -> Division | None:
    """Returns a tensor as parts of different range along the first axis that has such, or that a tensor has of which it
    is a reshaped form; None where there are none."""
    shape = cutter.shapes.get(tensor, ())
    for axis, cuts in cutter.axes(tensor).items():
        pieces = []
        for start, stop in itertools.pairwise([0, *cuts, shape[axis]]):
            own, piece = values[:, *[slice(None)] * axis, start:stop], cutter.piece(tensor, axis, start, stop)
            pieces.append(Part(start, stop, _reach(own), piece, inner=_divided(cutter, piece, own)))
        parts = [replace(part, tensor=cutter.piece(tensor, axis, part.start, part.stop)) for part in _merged(pieces)]
        stored = any(part.tensor in cutter.constants for part in parts)
        if 1 < len(parts) <= _MOST_PARTS and not stored:
            return Division(shape, axis, tuple(parts), shape)
    source = cutter.reshaped(tensor)
    if not source:
        return None
    inner = _divided(cutter, source, values.reshape(len(values), *cutter.shapes[source]))
    return inner and replace(inner, stands_for=shape)


def _reach(values: Array) -> float:
    """Returns what a scale for values must span; those from 0 to 1 may all be scores, which are small on noise."""
    low, high = float(values.min()), float(values.max())
    return 1.0 if 0 <= low < high <= 1 else max(high, 0.0) - min(low, 0.0)


def _merged(pieces: Iterable[Part]) -> list[Part]:
    """Returns the pieces, neighbours of like reach as one; those that are divided further stay as they are."""
    parts: list[Part] = []
    least = most = 0.0
    for piece in pieces:
        lower, upper = min(least or piece.reach, piece.reach or least), max(most, piece.reach)
        alike = upper * FEWEST_STEPS <= lower * _STEPS
        if parts and alike and piece.inner is None and parts[-1].inner is None:
            parts[-1], least, most = replace(parts[-1], stop=piece.stop, reach=upper), lower, upper
        else:
            parts.append(piece)
            least = most = piece.reach
    return parts


@dataclass
class _Cutter:
    """Cuts tensors along an axis, back to where their pieces were put together."""

    model: ModelProto
    nodes: list[NodeProto] = field(default_factory=list)
    stored: list[TensorProto] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.shapes = tensor_shapes(self.model)
        self.makers = {name: node for node in self.model.graph.node for name in node.output}
        self.constants = initializer_names(self.model.graph)
        self.names = {*self.shapes, *self.makers}

    def free(self, name: str) -> str:
        """Returns a name that no tensor has."""
        names = itertools.chain([name], (f"{name}_{at}" for at in itertools.count()))
        chosen = next(each for each in names if each not in self.names)
        self.names.add(chosen)
        return chosen

    def axes(self, output: str) -> dict[int, list[int]]:
        """Returns the places where an output can be cut, by axis; its first axis counts samples."""
        cuts = {axis: self.cuts(output, axis) for axis in range(1, len(self.shapes.get(output, ())))}
        return {axis: sorted(places) for axis, places in cuts.items() if 0 < len(places) < _MOST_PIECES}

    def reshaped(self, tensor: str) -> str:
        """Returns what a tensor is a reshaped form of, or nothing."""
        node = self.makers.get(tensor)
        source = node.input[0] if node is not None and node.op_type in VIEWS else ""
        return source if source in self.shapes and source in self.makers else ""

    def cuts(self, tensor: str, axis: int) -> set[int]:
        """Returns the places along an axis where a tensor can be cut into what it was put together from."""
        node = self.makers.get(tensor)
        if node is None or tensor not in self.shapes:
            return set()
        if node.op_type == "Concat" and all(name in self.shapes for name in node.input):
            inner = [self.cuts(name, axis) for name in node.input]
            if axis != self.along(node):
                return set.intersection(*inner)
            starts = [0, *itertools.accumulate(self.shapes[name][axis] for name in node.input)]
            own = {start + cut for start, cuts in zip(starts, inner, strict=False) for cut in cuts}
            return own | {*starts[1:-1]}
        before = self.before(node, axis)
        return set() if before is None else self.cuts(node.input[0], before)

    def along(self, node: NodeProto) -> int:
        return int(attribute(node, "axis", 0)) % len(self.shapes[node.output[0]])

    def before(self, node: NodeProto, axis: int) -> int | None:
        """Returns the axis of what a node reads that an axis of its result is, None where there is none."""
        source, result = self.shapes.get(node.input[0]) if node.input else None, self.shapes[node.output[0]]
        if node.op_type == "Identity":
            return axis
        if node.op_type == "Transpose":
            order = numbers(node, "perm") or range(len(result))[::-1]
            return order[axis]
        if node.op_type not in VIEWS or source is None:
            return None
        ahead = math.prod(result[:axis])
        same = (at for at, size in enumerate(source) if size == result[axis] and math.prod(source[:at]) == ahead)
        return next(same, None)

    def piece(self, tensor: str, axis: int, start: int, stop: int) -> str:
        """Returns the tensor that holds these places of another, from operators that are written where needed."""
        if (start, stop) == (0, self.shapes[tensor][axis]):
            return tensor
        node = self.makers[tensor]
        if node.op_type == "Concat":
            if axis != self.along(node):
                pieces = [self.piece(name, axis, start, stop) for name in node.input]
            else:
                pieces, begin = [], 0
                for name in node.input:
                    end = begin + self.shapes[name][axis]
                    if begin < stop and start < end:
                        pieces.append(self.piece(name, axis, max(start - begin, 0), min(stop, end) - begin))
                    begin = end
            return pieces[0] if len(pieces) == 1 else self.emit("Concat", pieces, tensor, axis=self.along(node))
        before = self.before(node, axis)
        assert before is not None, "a cut goes through what `cuts` has seen"
        source = self.piece(node.input[0], before, start, stop)
        if node.op_type == "Identity":
            return source
        if node.op_type == "Transpose":
            order = numbers(node, "perm") or range(len(self.shapes[tensor]))[::-1]
            return self.emit("Transpose", [source], tensor, perm=list(order))
        shape = list(self.shapes[tensor])
        shape[axis] = stop - start
        return self.emit("Reshape", [source, self.constant(shape, tensor)], tensor)

    def emit(self, kind: str, inputs: Sequence[str], tensor: str, **settings: Any) -> str:
        name = self.free(f"{tensor}/part")
        self.nodes.append(helper.make_node(kind, list(inputs), [name], name=name, **settings))
        return name

    def constant(self, values: Sequence[int], tensor: str) -> str:
        name = self.free(f"{tensor}/shape")
        self.stored.append(numpy_helper.from_array(np.array(values, np.int64), name))
        return name

    def output(self, part: Part) -> ValueInfoProto:
        """Gives a part the name of an output and returns its description."""
        self.nodes.append(helper.make_node("Identity", [part.tensor], [part.name], name=part.name))
        return helper.make_tensor_value_info(part.name, TensorProto.FLOAT, None)

    def model_with(self, outputs: Sequence[ValueInfoProto]) -> ModelProto:
        """Returns the model with these outputs and the operators that they need."""
        result = ModelProto()
        result.CopyFrom(self.model)
        del result.graph.output[:]
        result.graph.output.extend(outputs)
        result.graph.initializer.extend(self.stored)
        nodes = needed_nodes([*result.graph.node, *self.nodes], {value.name for value in outputs})
        return infer(with_nodes(result, _renamed(nodes, {value.name for value in outputs})))


def _renamed(nodes: Sequence[NodeProto], outputs: Collection[str]) -> list[NodeProto]:
    """Returns the nodes where what only an `Identity` in front of an output reads has the output's name."""
    reads = Counter(name for node in nodes for name in names_read(node))
    computed = {name for node in nodes for name in node.output} - {*outputs}
    ends = {n.input[0]: n.output[0] for n in nodes if n.op_type == "Identity" and n.output[0] in outputs}
    ends = {name: end for name, end in ends.items() if reads[name] == 1 and name in computed}
    kept = [node for node in nodes if node.output[0] not in ends.values()]
    for node in kept:
        node.output[:] = [ends.get(name, name) for name in node.output]
    return kept
