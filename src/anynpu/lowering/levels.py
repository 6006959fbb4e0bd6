"""Logarithms of what spans more than 16 bits hold, such as the power of a spectrum, level by level.

A level is the argument over its threshold, cut at one and below at a part of it that a table of 513 values still tells
apart. Above the level it is one and below it that part, so the logarithms of all levels add up to that of the argument.
The argument is computed anew for each level from what it is the square, root or sum of: a factor in front of a square
brings small numbers up, and those that do not fit are cut, as they would be anyway.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Set
from dataclasses import dataclass, field, replace

import numpy as np

from anynpu.lowering.graph import Graph, Operator, Tensor, free_name
from anynpu.lowering.options import Add, Mul, Options
from anynpu.quantize.ranges import Range
from anynpu.quantize.weights import symmetric_scales
from anynpu.tensors import Array

_SPAN = 64.0
"""How many times its smallest number the largest of one table is."""
_MOST_LEVELS = 12
_MOVES = ("RESHAPE", "TRANSPOSE", "SLICE")
_PRODUCTS = ("CONV_2D", "FULLY_CONNECTED")
_FINE = 128.0
"""How small a part of their range products are computed anew for."""
_STEP = 1 / 32767
_TINY = 1e-9
"""What is added before an inverse root so that zero has one."""
_MOST_ROOM = 64.0
"""How far beyond the cut the terms of a weighted sum are kept."""


def in_levels(
    graph: Graph, ranges: Mapping[str, Range], wide: Set[str]
) -> tuple[Graph, dict[str, Range], frozenset[str]]:
    """Returns the graph with the wide logarithms of more than one level as sums, its ranges, and what is wide."""
    at = _Levels(graph, graph.makers(), dict(graph.tensors), dict(ranges), [], {*wide})
    for operator in graph.operators:
        if operator.kind != "LOG" or operator.outputs[0] not in wide or not at.logarithm(operator):
            at.operators.append(operator)
    written, at.operators = at.operators, []
    for operator in written:
        if operator.outputs[0] not in at.squared or not at.twice(operator):
            at.operators.append(operator)
    return replace(graph, operators=tuple(at.operators), tensors=at.tensors), at.ranges, frozenset(at.wide)


def arguments(graph: Graph, logarithms: Collection[str]) -> frozenset[str]:
    """Returns what the arguments of some logarithms are computed of, back to the products with stored weights."""
    makers, results = graph.makers(), set[str]()
    waiting = [makers[name].inputs[0] for name in logarithms]
    while waiting:
        maker = makers.get(waiting.pop())
        if maker is None or maker.outputs[0] in results:
            continue
        results.add(maker.outputs[0])
        if maker.kind in _SCALED or maker.kind == "RSQRT":
            waiting += maker.inputs
    return frozenset(results)


def all_arguments(graph: Graph) -> frozenset[str]:
    """Returns the arguments of all logarithms: what rounding takes from the mean of one says nothing of small numbers,
    whose logarithms are as far from one another as those of large ones."""
    return arguments(graph, [operator.outputs[0] for operator in graph.operators if operator.kind == "LOG"])


@dataclass
class _Levels:
    """The graph as it is written anew."""

    graph: Graph
    makers: Mapping[str, Operator]
    tensors: dict[str, Tensor]
    ranges: dict[str, Range]
    operators: list[Operator]
    wide: set[str]
    squared: set[str] = field(default_factory=set)
    """Products with stored weights that are squared."""
    cut: dict[str, str] = field(default_factory=dict)
    """The same products in a small part of their range."""

    def emit(self, kind: str, inputs: tuple[str, ...], like: str, most: float, options: Options | None = None) -> str:
        """Adds an operator of numbers up to `most` and returns its result."""
        name = free_name(f"{like}/level", self.tensors)
        self.tensors[name] = replace(self.tensors[like], name=name, data=None)
        self.ranges[name] = Range(-most, most)
        self.wide.add(name)
        self.operators.append(Operator(kind, inputs, (name,), options))
        return name

    def store(self, values: Array, stem: str) -> str:
        """Adds stored numbers and returns their name."""
        name = free_name(stem, self.tensors)
        self.tensors[name] = Tensor(name, values.shape, "float32", values.astype(np.float32))
        return name

    def number(self, value: float) -> str:
        """Adds a number and returns its name."""
        return self.store(np.asarray(value), "level/number")

    def stored(self, operator: Operator) -> tuple[str, float]:
        """Returns the computed operand and the stored number of an operator of both, or an empty name."""
        arrays = [self.graph.constant(name) for name in operator.inputs]
        for place, array in enumerate(arrays):
            if len(arrays) == 2 and array is not None and array.size == 1 and arrays[1 - place] is None:
                return operator.inputs[1 - place], float(array.reshape(-1)[0])
        return "", 0.0

    def logarithm(self, operator: Operator) -> bool:
        """Writes a logarithm as a sum of those of its levels, where there are several."""
        source, result = operator.inputs[0], operator.outputs[0]
        limits = self.ranges.get(source)
        least = self.least(source)
        if limits is None or limits.max <= 0:
            return False
        least = max(least if least > 0 else limits.min, limits.max * self.finest(source))
        span = 8.0 if self.rooted(source) else _SPAN
        count = min(math.ceil(math.log(limits.max / least, span) - 1e-6), _MOST_LEVELS)
        if count < 2:
            return False
        total, depth = "", math.log(span)
        for level in range(count):
            cut = self.scaled(source, limits.max / span**level, 1.0)
            cut = self.emit("MAXIMUM", (cut, self.number(1 / span)), source, 1.0)
            part = self.emit("LOG", (cut,), source, depth)
            total = self.emit("ADD", (total, part), source, depth * (level + 1), Add()) if total else part
        self.operators.append(Operator("ADD", (total, self.number(math.log(limits.max))), (result,), Add()))
        return True

    def quiet(self, name: str, most: float) -> str:
        """Returns what is squared, or moved before it is; where no more than a small part of its range matters, as the
        same products cut there."""
        maker = self.makers.get(name)
        if maker is None or maker.kind not in (*_MOVES, *_PRODUCTS) or name not in self.ranges:
            return name
        if name in self.cut:
            return self.cut[name]
        limits, inputs = self.ranges[name], maker.inputs
        if maker.kind in _MOVES:
            inputs = (self.quiet(inputs[0], most), *inputs[1:])
            limits = self.ranges[inputs[0]]
        else:
            self.squared.add(name)
            limits = Range(limits.min / _FINE, limits.max / _FINE)
        part = max(-limits.min, limits.max)
        if most > part or maker.activation != "NONE" or (inputs == maker.inputs and maker.kind in _MOVES):
            return name
        self.cut[name] = self.emit(maker.kind, inputs, name, part, maker.options)
        if maker.kind in _PRODUCTS:
            self.squared.add(self.cut[name])
        return self.cut[name]

    def twice(self, operator: Operator) -> bool:
        """Writes products with stored weights as two: with those that 8 bits hold, and with what these leave. What is
        quiet beside a loud channel would drown in the rounding of weights."""
        source, stored, *bias = operator.inputs if operator.kind in _PRODUCTS else ("", "")
        weights, limits, result = self.graph.constant(stored), self.ranges.get(source), operator.outputs[0]
        if weights is None or limits is None or result not in self.ranges or operator.activation != "NONE":
            return False
        scales = symmetric_scales(weights, 0, 8).reshape(-1, *(1 for _ in weights.shape[1:]))
        coarse = np.rint(weights / scales) * scales
        fine, nothing = weights - coarse, self.store(np.zeros(len(weights)), f"{stored}/bias")
        loudest = float(np.abs(fine).reshape(len(fine), -1).sum(axis=1).max()) * max(-limits.min, limits.max)
        whole = max(-self.ranges[result].min, self.ranges[result].max)
        parts = [
            self.emit(
                operator.kind, (source, self.store(array, f"{stored}/part"), *ends), result, most, operator.options
            )
            for array, ends, most in ((coarse, bias, whole), (fine, [nothing], loudest))
        ]
        self.operators.append(Operator("ADD", (parts[0], parts[1]), (result,), Add()))
        self.wide.add(result)
        return True

    def least(self, name: str) -> float:
        """Returns what the stored numbers of an argument say that it is not below; zero where they say nothing."""
        maker = self.makers.get(self.original(name))
        source, number = self.stored(maker) if maker is not None else ("", 0.0)
        if maker is None or not source:
            return self.least(maker.inputs[0]) if maker is not None and maker.kind in _MOVES else 0.0
        below = min(0.0, self.ranges[source].min) if source in self.ranges else -number
        if maker.kind in ("ADD", "MAXIMUM"):
            return max(number + (below if maker.kind == "ADD" else 0.0), 0.0)
        return max(number, 0.0) * self.least(source) if maker.kind == "MUL" else 0.0

    def finest(self, name: str) -> float:
        """Returns what part of its largest number an argument still tells from nothing."""
        maker = self.makers.get(self.original(name))
        if maker is None:
            return _STEP
        if maker.kind == "SQRT" or (source := self.root(maker)):
            return math.sqrt(self.finest(maker.inputs[0] if maker.kind == "SQRT" else source))
        if maker.kind == "MUL" and maker.inputs[0] == maker.inputs[1]:
            return (_STEP / _FINE) ** 2
        if maker.kind not in _SCALED:
            return _STEP
        return min(self.finest(each) for each in maker.inputs if self.graph.constant(each) is None)

    def rooted(self, name: str) -> bool:
        """Tells whether an argument is computed from a root."""
        maker = self.makers.get(self.original(name))
        if maker is not None and maker.kind == "SQRT":
            return True
        if maker is None or maker.kind not in (*_MOVES, "ADD", "MUL", "MAXIMUM", "FULLY_CONNECTED"):
            return False
        return bool(self.root(maker)) or any(self.rooted(each) for each in maker.inputs if each in self.makers)

    def original(self, name: str) -> str:
        """Returns what a tensor is a copy of, as those are that keep operators apart; or the tensor."""
        maker = self.makers.get(name)
        copied = maker is not None and maker.kind == "MAXIMUM" and maker.inputs[0] == maker.inputs[1]
        return maker.inputs[0] if maker is not None and copied else name

    def root(self, operator: Operator) -> str:
        """Returns what an operator is the root of, x / sqrt(x), or an empty name."""
        if operator.kind != "MUL" or self.stored(operator)[0]:
            return ""
        for source, name in (operator.inputs, operator.inputs[::-1]):
            inverse = self.makers.get(self.original(name))
            if inverse is None or inverse.kind != "RSQRT":
                continue
            rooted = self.original(inverse.inputs[0])
            above = self.makers.get(rooted)
            term, number = self.stored(above) if above is not None and above.kind == "ADD" else ("", 0.0)
            if self.original(source) == rooted or (self.original(source) == self.original(term) and number <= _TINY):
                return source
        return ""

    def scaled(self, name: str, threshold: float, most: float) -> str:
        """Returns a tensor that is not below zero over a threshold, cut at `most`."""
        name = self.original(name)
        maker = self.makers.get(name)
        rule = _SCALED.get(maker.kind) if maker is not None and maker.activation == "NONE" else None
        scaled = rule(self, maker, threshold, most) if rule is not None and maker is not None else ""
        return scaled or self.emit("MUL", (name, self.number(1 / threshold)), name, most, Mul())


_Rule = Callable[[_Levels, Operator, float, float], str]


def added(at: _Levels, operator: Operator, threshold: float, most: float) -> str:
    (source, number), result = at.stored(operator), operator.outputs[0]
    if source:
        inputs = at.scaled(source, threshold, most), at.number(min(number / threshold, most))
    elif any(at.ranges.get(each, Range(-1.0, 0.0)).min < 0 for each in operator.inputs):
        return ""
    else:
        first, second = operator.inputs
        inputs = at.scaled(first, threshold, most), at.scaled(second, threshold, most)
    return at.emit(operator.kind, inputs, result, most, Add() if operator.kind == "ADD" else None)


def product(at: _Levels, operator: Operator, threshold: float, most: float) -> str:
    (source, number), result = at.stored(operator), operator.outputs[0]
    if source:
        return at.scaled(source, threshold / number, most) if number > 0 else ""
    first, second = map(at.original, operator.inputs)
    if first == second:
        factor = at.number(1 / math.sqrt(threshold))
        quiet = at.quiet(first, math.sqrt(threshold * most))
        louder = at.emit("MUL", (quiet, factor), first, math.sqrt(most), Mul())
        return at.emit("MUL", (louder, louder), result, most, Mul())
    source = at.root(operator)
    return root_of(at, operator, source, threshold, most) if source else ""


def root_of(at: _Levels, operator: Operator, source: str, threshold: float, most: float) -> str:
    result = operator.outputs[0]
    square = at.scaled(source, threshold**2, most**2)
    # Below this, what follows cuts the root.
    above = at.emit("MAXIMUM", (square, at.number(most**2 / _SPAN)), result, most**2)
    inverse = at.emit("RSQRT", (above,), result, math.sqrt(_SPAN) / most)
    # Vela loads the tables of roots and logarithms in one chain to one place on U85.
    inverse = at.emit("MAXIMUM", (inverse, inverse), result, math.sqrt(_SPAN) / most)
    return at.emit("MUL", (square, inverse), result, most, Mul())


def square_root(at: _Levels, operator: Operator, threshold: float, most: float) -> str:
    return root_of(at, operator, operator.inputs[0], threshold, most)


def weighted(at: _Levels, operator: Operator, threshold: float, most: float) -> str:
    source, stored, bias = operator.inputs
    weights, offsets = at.graph.constant(stored), at.graph.constant(bias) if bias else None
    if weights is None or offsets is None or min(weights.min(), offsets.min()) < 0 or not weights.any():
        return ""
    if source not in at.ranges or at.ranges[source].min < 0:  # what is cut would no longer cancel
        return ""
    room = min(most / float(weights[weights > 0].min()), most * _MOST_ROOM)
    terms = at.scaled(source, threshold, max(room, most))
    inputs = (terms, stored, at.store(np.minimum(offsets / threshold, most), f"{stored}/bias"))
    return at.emit("FULLY_CONNECTED", inputs, operator.outputs[0], most, operator.options)


def moved(at: _Levels, operator: Operator, threshold: float, most: float) -> str:
    inputs = (at.scaled(operator.inputs[0], threshold, most), *operator.inputs[1:])
    return at.emit(operator.kind, inputs, operator.outputs[0], most, operator.options)


_SCALED: dict[str, _Rule] = {
    "ADD": added,
    "MAXIMUM": added,
    "MUL": product,
    "FULLY_CONNECTED": weighted,
    "SQRT": square_root,
    **dict.fromkeys(_MOVES, moved),
}
