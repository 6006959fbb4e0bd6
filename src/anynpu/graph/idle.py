"""Nodes that change nothing, or compute what another node does: each leaves the graph, and who read it reads on."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass, field

import numpy as np
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

from anynpu.graph.attributes import attribute, numbers
from anynpu.graph.fold import RANDOM, copied, inner_graphs, names_read, static_shapes, with_nodes
from anynpu.graph.passes import Pass
from anynpu.graph.shapes import VIEWS
from anynpu.tensors import Array

_SMALL = 1 << 16
"""Constants with more elements are taken for working ones: to look at them all takes longer than it saves."""


@dataclass(frozen=True)
class Known:
    """What is known of the tensors of a graph: shapes, types and constants."""

    shapes: Mapping[str, tuple[int, ...]]
    types: Mapping[str, int]
    stored: Mapping[str, TensorProto]
    read: Set[str]
    arrays: dict[str, Array | None] = field(default_factory=dict)

    @classmethod
    def of(cls, model: ModelProto) -> Known:
        graph = model.graph
        values = (*graph.input, *graph.value_info, *graph.output)
        types = {value.name: value.type.tensor_type.elem_type for value in values}
        types |= {tensor.name: tensor.data_type for tensor in graph.initializer}
        read = {value.name for value in graph.output}.union(*map(names_read, graph.node))
        return cls(static_shapes(graph), types, {tensor.name: tensor for tensor in graph.initializer}, read)

    def constant(self, node: NodeProto, place: int) -> Array | None:
        """Returns a small constant that a node reads, or None."""
        name = node.input[place] if place < len(node.input) else ""
        if name not in self.arrays:
            tensor = self.stored.get(name)
            small = tensor is not None and math.prod(tensor.dims) <= _SMALL
            self.arrays[name] = numpy_helper.to_array(tensor) if tensor is not None and small else None
        return self.arrays[name]

    def keeps_shape(self, node: NodeProto, place: int = 0) -> bool:
        """Tells whether a node gives the shape that it is given."""
        shape = self.shapes.get(node.input[place])
        return shape is not None and shape == self.shapes.get(node.output[0])


def _all(values: Array | None, number: float) -> bool:
    return values is not None and values.size > 0 and bool((values == number).all())


Rule = Callable[[NodeProto, Known], int | None]


def _neutral(number: float, *places: int) -> Rule:
    """Returns the rule of an operator that gives its one input where the other is `number` everywhere."""

    def rule(node: NodeProto, known: Known) -> int | None:
        for place in places:
            if _all(known.constant(node, place), number) and known.keeps_shape(node, 1 - place):
                return 1 - place
        return None

    return rule


def _first(idle: Callable[[NodeProto, Known], bool]) -> Rule:
    """Returns the rule of an operator that gives its first input where `idle` holds."""
    return lambda node, known: 0 if idle(node, known) else None


_RULES: dict[str, Rule] = {
    "Add": _neutral(0, 0, 1),
    "Sub": _neutral(0, 1),
    "Mul": _neutral(1, 0, 1),
    "Div": _neutral(1, 1),
    "Pow": _neutral(1, 1),
    "Cast": _first(lambda node, known: known.types.get(node.input[0], 0) == attribute(node, "to", -1)),
    "CastLike": _first(lambda node, known: known.types.get(node.input[0], 0) == known.types.get(node.output[0], -1)),
    "Slice": _first(
        lambda node, known: (
            known.keeps_shape(node) and ("".join(node.input[4:]) == "" or _all(known.constant(node, 4), 1))
        )
    ),
    "Pad": _first(lambda node, known: _all(known.constant(node, 1), 0)),
    "Transpose": _first(lambda node, known: list(order := numbers(node, "perm")) == sorted(order) != []),
    "Concat": _first(lambda node, known: len(node.input) == 1),
    "Identity": _first(lambda node, known: True),
    # Unless a third input, the mode, says that it is trained, or its mask is read.
    "Dropout": _first(lambda node, known: len(node.input) < 3 and not known.read & set(node.output[1:])),
    **dict.fromkeys((*VIEWS, "Expand", "Tile"), _first(lambda node, known: known.keeps_shape(node))),
}
"""For each operator the input that a node gives unchanged, or None where it changes something."""


def _untouchable(model: ModelProto) -> set[str]:
    """Returns the tensors whose names must stay: results, and what branches and loops read."""
    inside = (names_read(node) for node in model.graph.node if any(inner_graphs(node)))
    return {value.name for value in model.graph.output}.union(*inside)


def _without(model: ModelProto, heirs: Mapping[str, str], renamed: Mapping[str, str] = {}) -> ModelProto:
    """Returns a model without the nodes that make the tensors of `heirs`: whoever reads one reads its heir; some other
    tensors have a new name."""

    def name_of(name: str) -> str:
        while name in heirs:
            name = heirs[name]
        return renamed.get(name, name)

    nodes = [copied(node) for node in model.graph.node if not set(node.output) & heirs.keys()]
    for node in nodes:
        node.input[:] = [name_of(name) for name in node.input]
        node.output[:] = [renamed.get(name, name) for name in node.output]
    return with_nodes(model, nodes)


def without_idle(model: ModelProto) -> tuple[ModelProto, int]:
    """Returns the model without nodes that change nothing, and how many there were."""
    known, fixed = Known.of(model), _untouchable(model)
    results, computed = {value.name for value in model.graph.output}, set[str]()
    heirs, renamed = dict[str, str](), dict[str, str]()
    for node in model.graph.node:
        rule = _RULES.get(node.op_type) if node.domain in ("", "ai.onnx") else None
        place = rule(node, known) if rule is not None else None
        name, source = node.output[0], "" if place is None else node.input[place]
        if source and name not in fixed:
            heirs[name] = source
        elif source in computed and source not in {*fixed, *renamed, *heirs} and name in results:
            heirs[name], renamed[source] = source, name  # what a result repeats gets its name
        computed.update(node.output)
    return (_without(model, heirs, renamed), len(heirs)) if heirs else (model, 0)


def without_twins(model: ModelProto) -> tuple[ModelProto, int]:
    """Returns the model with one of nodes that compute the same, and how many others there were."""
    fixed, contents, same = _untouchable(model), dict[tuple[object, ...], str](), dict[str, str]()
    for tensor in model.graph.initializer:  # equal constants stay apart, but what reads them may be equal
        if math.prod(tensor.dims) <= _SMALL and tensor.data_type != TensorProto.STRING:
            content = tensor.data_type, tuple(tensor.dims), numpy_helper.to_array(tensor).tobytes()
            same[tensor.name] = contents.setdefault(content, tensor.name)
    heirs: dict[str, str] = {}
    first: dict[tuple[object, ...], NodeProto] = {}
    for node in model.graph.node:
        if node.op_type in RANDOM or any(inner_graphs(node)):
            continue
        inputs = tuple(same.get(name, name) for name in (heirs.get(name, name) for name in node.input))
        settings = tuple(sorted(item.SerializeToString(deterministic=True) for item in node.attribute))
        twin = first.setdefault((node.domain, node.op_type, inputs, settings, len(node.output)), node)
        pairs = [(name, other) for name, other in zip(node.output, twin.output, strict=True) if name]
        if twin is not node and not fixed & set(node.output) and all(other for _, other in pairs):
            heirs |= dict(pairs)
    return (_without(model, heirs), len(heirs)) if heirs else (model, 0)


def joined(model: ModelProto) -> tuple[ModelProto, int]:
    """Returns the model in which moves in a row are one, and how many there were."""
    known, constants = Known.of(model), dict[str, Array]()
    nodes = [copied(node) for node in model.graph.node]
    makers = {name: node for node in nodes for name in node.output}
    changed = 0
    for node in nodes:
        before = makers.get(node.input[0]) if node.input and not node.domain else None
        inputs = _join(node, before, known) if before is not None and not before.domain else None
        if before is None or inputs is None:
            continue
        names = [f"{node.output[0]}/joined{number}" for number in range(len(inputs))]
        constants |= dict(zip(names, inputs, strict=True))
        node.input[:] = [before.input[0], *names]
        changed += 1
    if not changed:
        return model, 0
    result = with_nodes(model, nodes)
    # One of an earlier round may have the name of a new constant.
    old = [copied(tensor) for tensor in result.graph.initializer if tensor.name not in constants]
    del result.graph.initializer[:]
    result.graph.initializer.extend([*old, *(numpy_helper.from_array(a, name) for name, a in constants.items())])
    return result, changed


def _join(node: NodeProto, before: NodeProto, known: Known) -> list[Array] | None:
    """Returns the constants with which a node does what the one before it does too, or None where it cannot."""
    if node.op_type == before.op_type == "Transpose":
        first, second = numbers(before, "perm"), numbers(node, "perm")
        if not first or not second:
            return None
        del node.attribute[:]
        node.attribute.append(helper.make_attribute("perm", [first[axis] for axis in second]))
        return []
    shape = known.shapes.get(node.output[0])
    if node.op_type == "Reshape" and before.op_type in VIEWS and shape and 0 not in shape:
        return [np.array(shape, np.int64)]  # a zero would stand for the size of what is read
    if node.op_type == before.op_type == "Slice" and shape:
        first_cut, second_cut = (_cut(each, known, len(shape)) for each in (before, node))
        if first_cut and second_cut and not {*first_cut[2]} & {*second_cut[2]}:
            return [np.concatenate(pair) for pair in zip(first_cut, second_cut, strict=True)]
    return None


def _cut(node: NodeProto, known: Known, rank: int) -> tuple[Array, Array, Array, Array] | None:
    """Returns where a Slice begins and ends, on which axes, and its steps; None where one of these is computed."""
    constants = [known.constant(node, place) for place in range(1, max(len(node.input), 3))]
    if any(each is None for each in constants):
        return None
    begins, ends, *rest = (np.asarray(each, np.int64) for each in constants)
    axes = rest[0] % rank if rest else np.arange(len(begins))
    return begins, ends, axes, rest[1] if len(rest) > 1 else np.ones_like(begins)


def padded_inside(model: ModelProto) -> tuple[ModelProto, int]:
    """Returns the model whose convolutions pad by themselves what zeros were put around, and how many of them do."""
    known, changed = Known.of(model), 0
    nodes = [copied(node) for node in model.graph.node]
    makers = {name: node for node in nodes for name in node.output}
    for node in nodes:
        pad = makers.get(node.input[0]) if node.op_type == "Conv" and not node.domain else None
        if pad is None or pad.op_type != "Pad" or (len(pad.input) > 3 and pad.input[3]):
            continue
        sizes, settings = known.constant(pad, 1), {item.name: item for item in (*pad.attribute, *node.attribute)}
        value = known.constant(pad, 2) if len(pad.input) > 2 and pad.input[2] else np.zeros(1)
        plain = all(name not in settings or settings[name].s == word for name, word in _PLAIN.items())
        if sizes is None or not _all(value, 0) or not plain or (sizes < 0).any():
            continue
        begins, ends = np.split(sizes, 2)
        own = numbers(node, "pads") or (0,) * (len(sizes) - 4)
        if begins[:2].any() or ends[:2].any():
            continue
        for item in [item for item in node.attribute if item.name == "pads"]:
            node.attribute.remove(item)
        whole = np.concatenate([begins[2:], ends[2:]]) + own
        node.attribute.append(helper.make_attribute("pads", [int(size) for size in whole]))
        node.input[0] = pad.input[0]
        changed += 1
    return (with_nodes(model, nodes), changed) if changed else (model, 0)


_PLAIN = {"mode": b"constant", "auto_pad": b"NOTSET"}
IDLE = Pass("idle", "nodes that change neither values nor shapes go", without_idle)
TWINS = Pass("twins", "of nodes that compute the same one stays", without_twins)
JOINED = Pass("joined", "a Reshape, Transpose or Slice behind another does what that does too", joined)
PADDING = Pass("padding", "zeros around what a convolution reads are its own padding", padded_inside)
