"""Writes moves in forms that every runtime has: transposes of at most four axes, and no copies that nobody needs."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from anynpu.lowering.graph import Graph, Operator, Tensor, int32, pruned
from anynpu.lowering.options import Concatenation, Reducer, Reshape, StridedSlice

# They broadcast their operands themselves.
BROADCASTING = ("ADD", "SUB", "MUL", "DIV", "MAXIMUM", "MINIMUM", "SQUARED_DIFFERENCE")
ONE_BY_ONE = frozenset(BROADCASTING) | {
    *("LOG", "EXP", "SQRT", "RSQRT", "NEG", "ABS", "SQUARE", "SIN", "COS", "LOGISTIC", "TANH", "GELU"),
    *("RELU", "RELU6", "RELU_N1_TO_1", "LEAKY_RELU", "ELU", "HARD_SWISH"),
}
"""Operators that compute each value from those at its place alone."""
MOST_JOINED = 10
"""How many tensors TFLite-Micro joins at once."""
MOST_AXES = 4
"""How many axes a TRANSPOSE has on every Ethos-U; TFLite-Micro has five."""


def without_broadcasts(graph: Graph) -> Graph:
    """A BROADCAST_TO goes from operators that broadcast by themselves to the same shape."""
    sources = {o.outputs[0]: o.inputs[0] for o in graph.operators if o.kind == "BROADCAST_TO"}
    operators: list[Operator] = []
    for operator in graph.operators:
        if operator.kind in BROADCASTING and any(name in sources for name in operator.inputs):
            inputs = list(operator.inputs)
            for place, name in enumerate(operator.inputs):
                smaller = [*inputs[:place], sources.get(name, name), *inputs[place + 1 :]]
                shapes = [graph.tensors[each].shape for each in smaller]
                whole = graph.tensors[operator.outputs[0]].shape
                ends = whole[::-1]
                # An NPU wants an operand that has the shape of the result.
                if max(shapes, key=math.prod) == whole and all(
                    len(shape) <= len(whole) and all(a in (1, b) for a, b in zip(shape[::-1], ends, strict=False))
                    for shape in shapes
                ):
                    inputs = smaller
            operator = replace(operator, inputs=tuple(inputs))
        operators.append(operator)
    return pruned(operators, graph.tensors, graph.inputs, graph.outputs)


def repeated(graph: Graph) -> Graph:
    """A BROADCAST_TO that repeats one axis a few times is a CONCATENATION, which an NPU has."""
    operators = []
    for operator in graph.operators:
        before, after = (graph.tensors[name].shape for name in (operator.inputs[0], operator.outputs[0]))
        if operator.kind == "BROADCAST_TO" and len(before) == len(after):
            grown = [place for place, (a, b) in enumerate(zip(before, after, strict=True)) if a != b]
            if len(grown) == 1 and after[grown[0]] <= MOST_JOINED:
                copies = (operator.inputs[0],) * after[grown[0]]
                operator = Operator("CONCATENATION", copies, operator.outputs, Concatenation(axis=grown[0]))
        operators.append(operator)
    return pruned(operators, graph.tensors, graph.inputs, graph.outputs)


def small_transposes(graph: Graph) -> Graph:
    """A TRANSPOSE of more than four axes becomes one of the axes that really move, or several; one that moves nothing
    but axes of one element is a RESHAPE."""
    tensors, operators = dict(graph.tensors), list[Operator]()
    for operator in graph.operators:
        order = graph.constant(operator.inputs[1]) if operator.kind == "TRANSPOSE" else None
        result = operator.outputs[0]
        if order is not None and len(merged(tensors[operator.inputs[0]].shape, list(order))[0]) <= 1:
            _reshaped(operators, tensors, operator.inputs[0], tensors[result].shape, result)
        elif order is None or len(order) <= MOST_AXES:
            operators.append(operator)
        else:
            operators += _steps(operator, [int(axis) for axis in order], tensors)
    return pruned(operators, tensors, graph.inputs, graph.outputs)


def merged(shape: Sequence[int], order: Sequence[int]) -> tuple[list[int], list[int]]:
    """Returns the shape and order of the same move with axes of one element gone and neighbours that stay so joined."""
    runs: list[list[int]] = []
    for axis in (each for each in order if shape[each] != 1):
        # Axes of one element between two neighbours do not part them.
        if runs and all(shape[each] == 1 for each in range(runs[-1][-1] + 1, axis)) and axis > runs[-1][-1]:
            runs[-1].append(axis)
        else:
            runs.append([axis])
    places = sorted(range(len(runs)), key=lambda number: runs[number][0])
    sizes = [math.prod(shape[axis] for axis in runs[number]) for number in places]
    return sizes, [places.index(number) for number in range(len(runs))]


def exchanges(sizes: Sequence[int], order: Sequence[int]) -> list[tuple[int, ...]]:
    """Returns the moves of one run of axes before another that bring axes into an order: four sizes each, of which the
    inner two change places."""
    current, moves = list(range(len(sizes))), list[tuple[int, ...]]()
    while current != [*order]:
        first = next(place for place, (a, b) in enumerate(zip(current, order, strict=True)) if a != b)
        start = current.index(order[first])
        end = start + 1
        while end < len(current) and current[end] == order[first + end - start]:
            end += 1
        parts = current[:first], current[first:start], current[start:end], current[end:]
        moves.append(tuple(math.prod(sizes[axis] for axis in part) for part in parts))
        current = [*parts[0], *parts[2], *parts[1], *parts[3]]
    return moves


def _steps(operator: Operator, order: list[int], tensors: dict[str, Tensor]) -> list[Operator]:
    """Returns the operators that move axes as one TRANSPOSE of many would."""
    source, result = operator.inputs[0], operator.outputs[0]
    sizes, target = merged(tensors[source].shape, order)
    whole = len(sizes) <= MOST_AXES
    swaps = [(tuple(sizes), tuple(target))] if whole else [(parts, (0, 2, 1, 3)) for parts in exchanges(sizes, target)]
    operators: list[Operator] = []
    name = source
    for number, (shape, moved) in enumerate(swaps):
        name = _reshaped(operators, tensors, name, shape, f"{result}/before{number}")
        target_shape = tuple(shape[axis] for axis in moved)
        inputs = (name, _stored(tensors, moved, f"{result}/order{number}"))
        name = f"{result}/moved{number}"
        tensors[name] = Tensor(name, target_shape, tensors[source].dtype)
        operators.append(Operator("TRANSPOSE", inputs, (name,)))
    _reshaped(operators, tensors, name, tensors[result].shape, result)
    return operators


def without_reshapes_between(graph: Graph) -> Graph:
    """A RESHAPE before functions of single values goes where another follows them: they keep the first shape."""
    readers, tensors, same = graph.readers(), dict(graph.tensors), dict[str, str]()
    for reshape in graph.operators:
        if reshape.kind != "RESHAPE" or reshape.outputs[0] in graph.outputs:
            continue
        shape = tensors[same.get(reshape.inputs[0], reshape.inputs[0])].shape
        inside = _functions_behind(graph, reshape.outputs[0], readers, len(shape))
        results = {operator.outputs[0] for operator in inside}
        ends = [user for name in results for user in readers.get(name, []) if user not in inside]
        if inside and ends and all(user.kind == "RESHAPE" for user in ends) and not results & {*graph.outputs}:
            tensors |= {name: replace(tensors[name], shape=shape) for name in results}
            same[reshape.outputs[0]] = same.get(reshape.inputs[0], reshape.inputs[0])
    operators = [
        replace(operator, inputs=tuple(same.get(name, name) for name in operator.inputs))
        for operator in graph.operators
        if operator.outputs[0] not in same
    ]
    return pruned(operators, tensors, graph.inputs, graph.outputs) if same else graph


def _functions_behind(graph: Graph, source: str, readers: dict[str, list[Operator]], rank: int) -> list[Operator]:
    """Returns the operators that compute from a tensor and numbers alone, value by value; none where another operator
    reads it."""
    values, inside = {source}, list[Operator]()
    pending = list(readers.get(source, []))
    while pending:
        operator = pending.pop(0)
        if operator in inside or operator.kind not in ONE_BY_ONE:
            continue
        others = [graph.tensors[name] for name in operator.inputs if name not in values]
        numbers = all(t.data is not None and t.data.size == 1 and len(t.shape) <= rank for t in others)
        if numbers and graph.tensors[operator.outputs[0]].shape == graph.tensors[source].shape:
            inside.append(operator)
            values.add(operator.outputs[0])
            pending += readers.get(operator.outputs[0], [])
    return inside if all(user in inside for user in readers.get(source, [])) else []


def joined_transposes(graph: Graph) -> Graph:
    """TRANSPOSE, RESHAPE and TRANSPOSE are one TRANSPOSE where the RESHAPE joins or parts axes, or none."""
    makers, tensors, operators = graph.makers(), dict(graph.tensors), list[Operator]()
    for operator in graph.operators:
        turned = _across(operator, makers, tensors) if operator.kind == "TRANSPOSE" else None
        if turned is None:
            operators.append(operator)
            continue
        source, sizes, order = turned
        result = operator.outputs[0]
        if len(sizes) > 1:
            source = _reshaped(operators, tensors, source, tuple(sizes), f"{result}/before")
            name = f"{result}/turned"
            tensors[name] = Tensor(name, tuple(sizes[axis] for axis in order), tensors[source].dtype)
            inputs = (source, _stored(tensors, order, f"{result}/order"))
            operators.append(Operator("TRANSPOSE", inputs, (name,)))
            source = name
        _reshaped(operators, tensors, source, tensors[result].shape, result)
    return pruned(operators, tensors, graph.inputs, graph.outputs)


def _across(
    second: Operator, makers: dict[str, Operator], tensors: dict[str, Tensor]
) -> tuple[str, list[int], list[int]] | None:
    """Returns what a TRANSPOSE behind a RESHAPE behind another reads, and the one move of its axes that does the same;
    None where there is none, or none of few axes."""
    reshape = makers.get(second.inputs[0])
    first = makers.get(reshape.inputs[0]) if reshape is not None and reshape.kind == "RESHAPE" else None
    if reshape is None or first is None or first.kind != "TRANSPOSE":
        return None
    orders = [tensors[each.inputs[1]].data for each in (first, second)]
    if orders[0] is None or orders[1] is None:
        return None
    before, after = (tensors[each.outputs[0]].shape for each in (first, reshape))
    # Each axis before and after the RESHAPE as a run of factors that both are made of.
    ends = sorted({math.prod(shape[:place]) for shape in (before, after) for place in range(len(shape) + 1)})
    if 0 in ends or any(high % low for low, high in itertools.pairwise(ends)):
        return None
    sizes = [high // low for low, high in itertools.pairwise(ends)]

    def runs(shape: Sequence[int]) -> list[range]:
        return [range(*(ends.index(math.prod(shape[:place])) for place in (at, at + 1))) for at in range(len(shape))]

    old, new = runs(before), runs(after)
    begin = [factor for axis in np.argsort(orders[0]) for factor in old[axis]]
    end = [factor for axis in orders[1] for factor in new[axis]]
    move = merged([sizes[factor] for factor in begin], [begin.index(factor) for factor in end])
    return (first.inputs[0], *move) if len(move[0]) <= MOST_AXES else None


def few_axes(graph: Graph) -> Graph:
    """A SLICE, STRIDED_SLICE or MEAN of more than four axes joins those that it leaves whole; MEAN goes run by run."""
    tensors, operators = dict(graph.tensors), list[Operator]()
    for operator in graph.operators:
        data = [graph.constant(name) for name in operator.inputs[1:]]
        many = (
            operator.kind in ("SLICE", "STRIDED_SLICE", "MEAN")
            and len(graph.tensors[operator.inputs[0]].shape) > MOST_AXES
        )
        if not many or any(array is None for array in data):
            operators.append(operator)
        elif operator.kind == "MEAN":
            operators += _means(operator, tensors)
        else:
            operators += _cut(operator, tensors)
    return pruned(operators, tensors, graph.inputs, graph.outputs)


def _cut(operator: Operator, tensors: dict[str, Tensor]) -> list[Operator]:
    source, result = operator.inputs[0], operator.outputs[0]
    before, after = tensors[source].shape, tensors[result].shape
    steps = operator.inputs[3:4]
    strides = [int(each) for each in np.asarray(tensors[steps[0]].data)] if steps else [1] * len(before)
    # The axes in runs: each touched one by itself, the others with their neighbours
    touched = [a != b or step != 1 for a, b, step in zip(before, after, strides, strict=True)]
    runs: list[list[int]] = []
    for axis, alone in enumerate(touched):
        if runs and not alone and not touched[axis - 1]:
            runs[-1].append(axis)
        else:
            runs.append([axis])
    operators: list[Operator] = []
    name = _reshaped(operators, tensors, source, _joined(before, runs), f"{result}/whole")
    bounds = []
    for number, bound in enumerate(operator.inputs[1:]):
        values = [int(each) for each in np.asarray(tensors[bound].data)]
        # Of a run that stays whole: from zero, to its end or in its size, one by one.
        joined = [
            values[run[0]] if len(run) == 1 else (0, math.prod(before[a] for a in run), 1)[number] for run in runs
        ]
        bounds.append(_stored(tensors, joined, f"{result}/bound{number}"))
    options = operator.options
    if isinstance(options, StridedSlice):
        mask = sum(1 << place for place, run in enumerate(runs) if len(run) == 1 and options.end_mask >> run[0] & 1)
        options = replace(options, end_mask=mask)
    small = f"{result}/cut"
    tensors[small] = Tensor(small, _joined(after, runs), tensors[source].dtype)
    operators.append(Operator(operator.kind, (name, *bounds), (small,), options))
    _reshaped(operators, tensors, small, after, result)
    return operators


def _joined(shape: Sequence[int], runs: Sequence[Sequence[int]]) -> tuple[int, ...]:
    return tuple(math.prod(shape[axis] for axis in run) for run in runs)


def _means(operator: Operator, tensors: dict[str, Tensor]) -> list[Operator]:
    source, result = operator.inputs[0], operator.outputs[0]
    shape, operators, name = list(tensors[source].shape), list[Operator](), source
    over = sorted(int(axis) % len(shape) for axis in np.asarray(tensors[operator.inputs[1]].data).reshape(-1))
    while over:
        first = last = over.pop(0)
        while over and over[0] == last + 1:
            last = over.pop(0)
        parts = math.prod(shape[:first]), math.prod(shape[first : last + 1]), math.prod(shape[last + 1 :])
        name = _reshaped(operators, tensors, name, parts, f"{result}/run{first}")
        small = f"{result}/mean{first}"
        tensors[small] = Tensor(small, (parts[0], 1, parts[2]), tensors[source].dtype)
        axis = _stored(tensors, [1], f"{result}/axis{first}")
        operators.append(Operator("MEAN", (name, axis), (small,), Reducer(True)))
        shape[first : last + 1] = [1] * (last + 1 - first)
        name = small
    _reshaped(operators, tensors, name, tensors[result].shape, result)
    return operators


def _stored(tensors: dict[str, Tensor], values: Sequence[int], name: str) -> str:
    tensors[name] = Tensor(name, (len(values),), "int32", int32(values))
    return name


def _reshaped(
    operators: list[Operator], tensors: dict[str, Tensor], name: str, shape: tuple[int, ...], result: str
) -> str:
    inputs = (name, _stored(tensors, shape, f"{result}/shape"))
    tensors[result] = Tensor(result, shape, tensors[name].dtype)
    operators.append(Operator("RESHAPE", inputs, (result,), Reshape(shape)))
    return result
