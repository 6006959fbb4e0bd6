"""Whole numbers and truth values as real ones of 16 bits at a scale of one: an Ethos-U55 or U65 computes no others.

Sums and products of such numbers are exact while they stay within 16 bits, which follows from the limits of what they
are computed from. A comparison is a difference cut at one, and a truth value is zero or one. The difference of real
numbers is made large first, so that an eighth of a step of 8 bits is none and all that is more is one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np

from anynpu.lowering.compared import ENDLESS, SHARP
from anynpu.lowering.compared import KINDS as COMPARISONS
from anynpu.lowering.graph import Graph, Operator, int32, pruned
from anynpu.lowering.lookups import LARGEST_NUMBER, MADE_REAL, is_small, looked_up, steps_of_lookups
from anynpu.lowering.options import Add, Cast, Fused, Mul, Reducer, Sub
from anynpu.lowering.rewriting import Rewriting
from anynpu.quantize.ranges import Range

_MOVES = frozenset(("RESHAPE", "TRANSPOSE", "SLICE", "STRIDED_SLICE", "PAD", "BROADCAST_TO"))
_WHOLE = frozenset(("int32", "bool"))
_MARK = "/whole/"
"""In the names of tensors that hold whole numbers on the way to another."""
_DIFFERENCE = "/difference"
"""How the difference of real numbers that are compared is named."""
_MOST_RANKED = 256
"""Among how many numbers the place of the largest is found."""
_FAR = 1e6
"""From here on a stored number is a mask, with which nothing is compared."""
_BASE = 128
_TRUTH = Range(0.0, 1.0)
_PLAIN = Range(-LARGEST_NUMBER, LARGEST_NUMBER)


def in_reals(graph: Graph) -> Graph:
    """Returns the graph with real numbers in place of the whole numbers and truth values that may be real."""
    numbers = real_numbers(graph)
    if not numbers:
        return graph
    tensors = dict(graph.tensors) | {name: replace(graph.tensors[name], dtype="float32") for name in numbers}
    at = Rewriting(graph, lambda *_: True, 0, tensors, [])
    for operator in graph.operators:
        if operator.kind in _MOVES or not numbers.keys() & {*operator.inputs, *operator.outputs}:
            at.operators.append(operator)
        else:
            _KINDS[operator.kind].write(at, operator)
    return pruned(at.operators, at.tensors, graph.inputs, graph.outputs)


def settled(before: Graph, after: Graph) -> tuple[dict[str, Range], list[str]]:
    """Returns the ranges of the whole numbers that are real behind a rewriting, and the tensors that keep 16 bits."""
    makers, readers = before.makers(), before.readers()
    names = {name for name, tensor in after.tensors.items() if tensor.dtype == "float32" and tensor.data is None}
    changed = [name for name in before.tensors if name in names and before.tensors[name].dtype in _WHOLE]
    exact = {name for name in names if _MARK in name}
    for name in reversed(changed):  # readers come after what they read
        users = readers.get(name, [])
        computed = name in makers and makers[name].kind not in _MOVES
        used = any(user.kind not in _MOVES and user.options != MADE_REAL for user in users)
        if computed or used or any(user.outputs[0] in exact for user in users):
            exact.add(name)
    ranges, rows = steps_of_lookups(after)
    differences = [name for name in names if _DIFFERENCE in name]
    return dict.fromkeys(exact, _PLAIN) | ranges, [*sorted(exact), *rows, *differences]


def real_numbers(graph: Graph) -> Mapping[str, Range]:
    """Returns the whole numbers and truth values that may be real, and between what they lie."""
    limits = {name: _PLAIN for name in graph.inputs if graph.tensors[name].dtype == "int32"}
    for operator in graph.operators:
        result = operator.outputs[0]
        whole = [name for name in operator.inputs if name and graph.tensors[name].dtype in _WHOLE]
        sides = [_limits(name, graph, limits) for name in whole]
        if graph.tensors[result].dtype not in _WHOLE or len(operator.outputs) > 1:
            continue
        if isinstance(operator.options, Fused) and operator.activation != "NONE":
            continue
        if operator.kind in _MOVES and sides and (first := sides[0]) is not None:
            outside = 0.0 if operator.kind == "PAD" else first.min
            limits[result] = Range(min(first.min, outside), max(first.max, outside))
        elif operator.kind in _KINDS and _KINDS[operator.kind].takes(operator, graph) and None not in sides:
            limits[result] = _KINDS[operator.kind].limits(*(each for each in sides if each is not None))
    limits = {name: each for name, each in limits.items() if max(-each.min, each.max) <= LARGEST_NUMBER}
    readers, makers = graph.readers(), graph.makers()

    def fits(operator: Operator) -> bool:
        """Tells whether an operator can read and give real numbers in place of its whole ones."""
        if operator.kind in _MOVES:
            return operator.inputs[0] in limits and operator.outputs[0] in limits
        if operator.kind not in _KINDS or not _KINDS[operator.kind].takes(operator, graph):
            return False
        names = [name for name in (*operator.inputs, *operator.outputs) if graph.constant(name) is None]
        return all(name in limits or graph.tensors[name].dtype == "float32" for name in names)

    def stays(name: str) -> bool:
        around = [*readers.get(name, []), *([makers[name]] if name in makers else [])]
        return name not in graph.outputs and bool(readers.get(name)) and all(map(fits, around))

    while lost := [name for name in limits if not stays(name)]:
        for name in lost:
            del limits[name]
    return limits


def _limits(name: str, graph: Graph, limits: Mapping[str, Range]) -> Range | None:
    data = graph.constant(name)
    if data is None or not data.size or data.dtype == np.float32:
        return limits.get(name)
    return Range(float(data.min()), float(data.max()))


def _real(at: Rewriting, name: str) -> str:
    """Returns a tensor, or a constant as real numbers with at least one axis."""
    data = at.graph.constant(name)
    return name if data is None else at.store(np.atleast_1d(data).astype(np.float32), f"{name}/real")


def _not(at: Rewriting, tensor: str, stem: str) -> str:
    one = at.store(np.ones(1, np.float32), f"{stem}/one")
    return at.emit("SUB", (one, tensor), at.shape(tensor), Sub(), f"{stem}{_MARK}not")


def compared(at: Rewriting, operator: Operator) -> None:
    """Writes a comparison as the difference, cut at one: its square where it asks for equality, else what is above."""
    result, shape = operator.outputs[0], at.shape(operator.outputs[0])
    first, second = (_real(at, name) for name in operator.inputs)
    if operator.kind in ("LESS", "GREATER_EQUAL"):
        first, second = second, first
    if shape not in (at.shape(first), at.shape(second)):
        # An NPU wants an operand that has the shape of the result
        ones = at.store(np.ones(shape, np.float32), f"{result}/ones")
        first = at.emit("MUL", (first, ones), shape, Mul(), f"{result}{_MARK}repeated")
    if at.graph.tensors[operator.inputs[0]].dtype == "float32":
        truth = _sharp(at, at.emit("SUB", (first, second), shape, Sub(), f"{result}{_DIFFERENCE}"), result)
    else:
        truth = at.emit("SUB", (first, second), shape, Sub("RELU_N1_TO_1"), f"{result}{_MARK}apart")
    if operator.kind in ("EQUAL", "NOT_EQUAL"):
        truth = at.emit("MUL", (truth, truth), shape, Mul(), f"{result}{_MARK}square")
    else:
        zero = at.store(np.zeros(1, np.float32), f"{result}/zero")
        truth = at.emit("MAXIMUM", (truth, zero), shape, None, f"{result}{_MARK}above")
    if operator.kind in ("EQUAL", "LESS_EQUAL", "GREATER_EQUAL"):
        truth = _not(at, truth, result)
    at.give(operator, truth)


def _sharp(at: Rewriting, difference: str, stem: str) -> str:
    """Returns the sign of a real number; the factor is one for floating point, integers have their own."""
    factor = at.store(np.asarray([ENDLESS], np.float32), f"{stem}{SHARP}")
    return at.emit("MUL", (difference, factor), at.shape(difference), Mul("RELU_N1_TO_1"), f"{stem}{_MARK}sign")


def largest(at: Rewriting, operator: Operator) -> None:
    """Writes ARG_MAX as a sum of places: of those whose number is not below the largest, the first counts."""
    source, result = operator.inputs[0], operator.outputs[0]
    *rows, size = at.shape(source)
    last = at.store(int32([len(rows)]), f"{result}/axis")
    top = at.emit("REDUCE_MAX", (source, last), (*rows, 1), Reducer(True), f"{result}/top")
    below = at.emit("SUB", (source, top), at.shape(source), Sub(), f"{result}{_DIFFERENCE}")
    flat = at.reshape(_sharp(at, below, result), (math.prod(rows), size), f"{result}{_MARK}rows")
    one = at.store(np.ones(1, np.float32), f"{result}/one")
    here = at.emit("ADD", (flat, one), at.shape(flat), Add(), f"{result}{_MARK}here")
    before = at.multiply(here, np.tril(np.ones((size, size)), -1), f"{result}{_MARK}before")
    none = at.emit("SUB", (one, before), at.shape(flat), Sub("RELU"), f"{result}{_MARK}none")
    first = at.emit("MUL", (here, none), at.shape(flat), Mul(), f"{result}{_MARK}first")
    number, places = "", np.arange(size)
    for digit, base in ((places % _BASE, 1), (places // _BASE, _BASE)):  # eight bits hold no weights above 127
        if digit.any():
            part = at.multiply(first, digit[np.newaxis], f"{result}{_MARK}digit")
            if base > 1:
                factor = at.store(np.full(1, base, np.float32), f"{result}/base")
                part = at.emit("MUL", (part, factor), at.shape(part), Mul(), f"{result}{_MARK}high")
            number = at.emit("ADD", (number, part), at.shape(part), Add(), f"{result}{_MARK}sum") if number else part
    number = number or at.multiply(first, places[np.newaxis], f"{result}{_MARK}digit")
    at.give(operator, at.reshape(number, at.shape(result), f"{result}{_MARK}shaped"))


def negated(at: Rewriting, operator: Operator) -> None:
    """Writes LOGICAL_NOT as the difference from one."""
    at.give(operator, _not(at, operator.inputs[0], operator.outputs[0]))


def joined(at: Rewriting, operator: Operator) -> None:
    """Writes LOGICAL_AND as a product and LOGICAL_OR as the larger of both; sums and the like stay what they are."""
    kind = {"LOGICAL_AND": "MUL", "LOGICAL_OR": "MAXIMUM"}.get(operator.kind, operator.kind)
    options = Mul() if operator.kind == "LOGICAL_AND" else operator.options
    inputs = tuple(_real(at, name) for name in operator.inputs)
    at.operators.append(Operator(kind, inputs, operator.outputs, options))


def cast(at: Rewriting, operator: Operator) -> None:
    """Leaves a CAST out; one to truth values asks for what is not zero."""
    source = at.graph.tensors[operator.inputs[0]].dtype
    if source == "int32" and at.graph.tensors[operator.outputs[0]].dtype == "bool":
        nothing = at.store(np.zeros(1, np.float32), f"{operator.outputs[0]}/nothing")
        compared(at, replace(operator, kind="NOT_EQUAL", inputs=(operator.inputs[0], nothing)))
    else:
        at.give(operator, operator.inputs[0])


def chosen(at: Rewriting, operator: Operator) -> None:
    """Writes SELECT_V2 of real numbers as what is chosen times the truth, plus the other times its contrary."""
    condition, *sides = operator.inputs
    result, shape = operator.outputs[0], at.shape(operator.outputs[0])
    parts = []
    for truth, name in zip((condition, _not(at, condition, result)), sides, strict=True):
        data = at.graph.constant(name)
        if data is None or data.any():
            sizes = np.broadcast_shapes(at.shape(truth), at.shape(name))
            parts.append(at.emit("MUL", (truth, _real(at, name)), sizes, Mul(), f"{result}/part"))
    whole = at.emit("ADD", parts, shape, Add(), f"{result}/sum") if len(parts) == 2 else parts[0]
    at.give(operator, whole)


def _of_whole_numbers(operator: Operator, graph: Graph) -> bool:
    return all(graph.tensors[name].dtype in _WHOLE for name in operator.inputs)


def of_whole_source(operator: Operator, graph: Graph) -> bool:
    """Tells whether a CAST is of whole numbers, or of truth values to numbers."""
    return _of_whole_numbers(operator, graph) and operator.options != Cast("bool", "bool")


def _comparable(operator: Operator, graph: Graph) -> bool:
    """Tells whether both sides are whole numbers, or real ones and no masks."""
    arrays = [array for name in operator.inputs if (array := graph.constant(name)) is not None]
    real = all(graph.tensors[name].dtype == "float32" for name in operator.inputs)
    near = all(np.all(np.abs(array) < _FAR) for array in arrays)
    return _of_whole_numbers(operator, graph) or (real and near and len(arrays) < 2)


def _ranked(operator: Operator, graph: Graph) -> bool:
    """Tells whether the largest of a few real numbers along the last axis is asked for."""
    axis, source = graph.constant(operator.inputs[1]), graph.tensors[operator.inputs[0]]
    last = axis is not None and int(axis.reshape(-1)[0]) % len(source.shape) == len(source.shape) - 1
    return last and source.shape[-1] <= _MOST_RANKED and source.dtype == "float32"


def _between(operator: Operator, graph: Graph) -> bool:
    """Tells whether a choice is between real numbers of a few kinds of shapes, and not all of nothing."""
    condition, *sides = operator.inputs
    shape, shapes = graph.tensors[operator.outputs[0]].shape, [graph.tensors[name].shape for name in sides]
    data = [graph.constant(name) for name in sides]
    some = any(each is None or each.any() for each in data)
    whole = all(shape in (graph.tensors[condition].shape, each) for each in shapes)
    return some and whole and graph.tensors[sides[0]].dtype == "float32"


def _truth(*_: Range) -> Range:
    return _TRUTH


def _product(first: Range, second: Range) -> Range:
    ends = [a * b for a in (first.min, first.max) for b in (second.min, second.max)]
    return Range(min(ends), max(ends))


def _hull(*sides: Range) -> Range:
    return Range(min(each.min for each in sides), max(each.max for each in sides))


@dataclass(frozen=True)
class _Kind:
    """How an operator is written in real numbers, between what its result lies, and which of its kind can be."""

    write: Callable[[Rewriting, Operator], None]
    limits: Callable[..., Range]
    takes: Callable[[Operator, Graph], bool] = _of_whole_numbers


_KINDS = {
    **dict.fromkeys(COMPARISONS, _Kind(compared, _truth, _comparable)),
    "ARG_MAX": _Kind(largest, lambda *_: Range(0.0, float(_MOST_RANKED)), _ranked),
    "LOGICAL_NOT": _Kind(negated, _truth),
    "LOGICAL_AND": _Kind(joined, _truth),
    "LOGICAL_OR": _Kind(joined, _truth),
    "ADD": _Kind(joined, lambda a, b: Range(a.min + b.min, a.max + b.max)),
    "SUB": _Kind(joined, lambda a, b: Range(a.min - b.max, a.max - b.min)),
    "MUL": _Kind(joined, _product),
    "MAXIMUM": _Kind(joined, _hull),
    "MINIMUM": _Kind(joined, _hull),
    "CONCATENATION": _Kind(joined, _hull),
    "CAST": _Kind(cast, lambda source: source, of_whole_source),
    "GATHER": _Kind(looked_up, _truth, is_small),
    "SELECT_V2": _Kind(chosen, _truth, _between),
}
