"""Which operators of an 8-bit graph compute in 16 bits; what goes in and what comes out has 8. And which ones compute
in 16 bits or in floating point because the plan names their tensors.

The squares of a normalisation span twice as many bits as what they are squares of, and its divisor must not round to
zero. The sums that it normalises carry what is small beside what is large through the whole net. A softmax that spreads
over hundreds of places has nothing but zeros and ones at its built-in scale of 1/256, and the boxes of a detector may
lie within a few steps of such a scale.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

import numpy as np

from anynpu.errors import Finding, Unsupported
from anynpu.lowering.graph import Graph, Operator
from anynpu.lowering.integers import KEEPS_SCALE, runs_on
from anynpu.lowering.levels import arguments
from anynpu.quantize.ranges import Range

_CARRY = ("ADD", "CONCATENATION", "RESHAPE", "TRANSPOSE")
_INSIDE = ("MEAN", "SUB", "MUL", "ADD", "RESHAPE")
_MOVING = ("ADD", "MUL", "MINIMUM", "MAXIMUM", "RESHAPE", "TRANSPOSE", "SLICE", "STRIDED_SLICE")
"""What places go through before they are compared with positions."""
NO_WIDE_KERNEL = "16-bit-kernel"
"""The rule that a tensor breaks whose maker cannot compute in 16 bits."""


# Results that span less than this part of a built-in scale of 8 bits waste two of them and more.
_SPREAD = 0.25
_BUILT_IN = {"SOFTMAX": 1.0, "LOGISTIC": 1.0, "TANH": 2.0}


def wide_operators(graph: Graph, ranges: Mapping[str, Range]) -> frozenset[str]:
    """Returns the first result of each operator that computes in 16 bits."""
    makers, readers = graph.makers(), graph.readers()
    wide: set[str] = set()
    for operator in graph.operators:
        limits = ranges.get(operator.outputs[0])
        if operator.kind in _BUILT_IN and limits is not None:
            least = 0.0 if operator.kind == "SOFTMAX" else limits.min
            if limits.max - least < _SPREAD * _BUILT_IN[operator.kind]:
                wide.add(operator.outputs[0])
        if operator.kind == "MINIMUM":
            wide |= _distance(operator, graph, makers)
        if operator.kind == "RSQRT":
            wide |= _before(operator, graph, makers) | _behind(operator, graph, readers)
        if operator.kind == "MAXIMUM" and operator.inputs[0] == operator.inputs[1] and operator.inputs[0] in wide:
            wide.add(operator.outputs[0])  # a copy
    # The sums that a normalisation reads, and those that they are sums of
    sums: set[str] = set()
    waiting = [makers[name].inputs[0] for name in wide if makers[name].kind in ("SUB", "MEAN")]
    while waiting:
        maker = makers.get(waiting.pop())
        if maker is None or maker.outputs[0] in sums | wide:
            continue
        # A stored factor for each channel, as `smooth.py` puts there.
        scaled = maker.kind == "MUL" and any(graph.constant(name) is not None for name in maker.inputs)
        if maker.kind not in _CARRY and not scaled:
            continue
        sums.add(maker.outputs[0])
        waiting += [name for name in maker.inputs if graph.constant(name) is None]
    return frozenset(wide | sums)


def _distance(near: Operator, graph: Graph, makers: dict[str, Operator]) -> set[str]:
    """Returns what computes how near a place is to each of a row of positions: 8 bits are too few for both the place
    and the part of a position that it is away."""
    sides = [makers.get(name) for name in near.inputs]
    computed = {name for side in sides if side for name in side.inputs if graph.constant(name) is None}
    difference = makers.get(next(iter(computed), ""))
    if len(computed) != 1 or {side.kind for side in sides if side} != {"ADD", "SUB"} or difference is None:
        return set()
    positions = graph.constant(difference.inputs[-1])
    if difference.kind != "SUB" or positions is None or positions.size < 2:
        return set()
    if np.any(np.diff(positions.reshape(-1)) != 1):
        return set()
    wide, name = {near.outputs[0], difference.outputs[0], *near.inputs}, difference.inputs[0]
    while (maker := makers.get(name)) is not None and maker.kind in _MOVING:
        wide.add(maker.outputs[0])
        name = next(each for each in maker.inputs if graph.constant(each) is None)
    return wide


def around(graph: Graph, tensors: Collection[str]) -> frozenset[str]:
    """Returns the first result of each operator that makes or reads one of the tensors, and of those that read it as
    it is moved: only so is it rounded nowhere."""
    makers, readers = graph.makers(), graph.readers()
    results: set[str] = set()
    for tensor in tensors:
        if tensor in makers:
            results.add(makers[tensor].outputs[0])
        waiting = list(readers.get(tensor, ()))
        while waiting:
            operator = waiting.pop()
            if operator.outputs[0] not in results:
                results.add(operator.outputs[0])
                moved = operator.kind in KEEPS_SCALE
                waiting += [each for name in operator.outputs for each in readers.get(name, ())] if moved else []
    return frozenset(results)


def chosen_wide(graph: Graph, tensors: Collection[str]) -> frozenset[str]:
    """Returns the operators that compute in 16 bits so that the named tensors keep them, logarithms with what their
    arguments are computed of; raises for a tensor whose maker has no kernel for that."""
    makers = graph.makers()
    narrow = [name for name in tensors if name in makers and not runs_on(makers[name], "int16", graph)]
    if narrow:
        findings = [
            Finding(NO_WIDE_KERNEL, f"{makers[name].kind} has no 16-bit kernel in LiteRT", name) for name in narrow
        ]
        raise Unsupported(f"wide_tensors: {findings[0]}", findings, "leave it out of wide_tensors")
    operators = {operator.outputs[0]: operator for operator in graph.operators}
    chosen = around(graph, tensors)
    chosen |= arguments(graph, [name for name in tensors if name in makers and makers[name].kind == "LOG"])
    return frozenset(name for name in chosen if runs_on(operators[name], "int16", graph))


def _before(root: Operator, graph: Graph, makers: dict[str, Operator]) -> set[str]:
    """Returns what computes the divisor: offset, mean, squares, and the difference from the mean that is squared."""
    wide, operator = {root.outputs[0]}, makers.get(root.inputs[0])
    for _ in range(12):
        if operator is None or operator.kind not in _INSIDE:
            break
        wide.add(operator.outputs[0])
        for name in operator.inputs[1:] if operator.kind == "ADD" else ():
            other = makers.get(name)
            if other is not None and other.kind == "MUL" and other.inputs[0] == other.inputs[1]:
                wide.add(name)  # the other square of a sum
        if operator.kind == "SUB":
            mean = makers.get(operator.inputs[1])
            while mean is not None and mean.kind in ("MEAN", "RESHAPE"):
                wide.add(mean.outputs[0])
                mean = makers.get(mean.inputs[0])
            break
        following = makers.get(operator.inputs[0])
        if operator.kind == "MUL" and (following is None or following.kind != "SUB"):
            break  # squares of the input itself
        operator = following
    return wide


def _behind(root: Operator, graph: Graph, readers: dict[str, list[Operator]]) -> set[str]:
    """Returns the product with the inverse deviation, and the scale and bias behind it."""
    wide: set[str] = set()
    for product in readers.get(root.outputs[0], []):
        operator = product
        while operator.kind in ("MUL", "ADD"):
            wide.add(operator.outputs[0])
            following = readers.get(operator.outputs[0], [])
            stored = len(following) == 1 and any(graph.constant(name) is not None for name in following[0].inputs)
            if not stored or operator.outputs[0] in graph.outputs:
                break
            operator = following[0]
    return wide
