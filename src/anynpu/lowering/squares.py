"""Squares, their means and roots, in forms that integers hold: they lose a small difference of large numbers."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from anynpu.lowering.graph import Graph, Operator, Tensor, pruned
from anynpu.lowering.options import Add, Mul, Reshape, Sub

# Operators of one tensor, or of one tensor and a stored number, that compute element by element.
_ELEMENTWISE = ("ADD", "SUB", "MUL", "DIV", "MAXIMUM", "MINIMUM", "SQRT", "RSQRT", "EXP", "LOG", "ABS", "LOGISTIC")
# What stands between squares and their root.
_INSIDE = ("ADD", "MEAN", "MUL", "RESHAPE", "CONCATENATION", "MAXIMUM")
# A root of zero must not be zero times infinity.
_TINY = 1e-12
# The inverse of a number, rounded, times the number.
_SAME = 1e-6


def later_broadcasts(graph: Graph) -> Graph:
    """A function of repeated values is the repeated function of the values."""
    makers, readers, tensors = graph.makers(), graph.readers(), dict(graph.tensors)
    operators = list(graph.operators)
    for place, operator in enumerate(graph.operators):
        computed = [name for name in operator.inputs if name and graph.constant(name) is None]
        stored = [graph.tensors[name] for name in operator.inputs if name and graph.constant(name) is not None]
        repeat = makers.get(computed[0]) if len(computed) == 1 else None
        if operator.kind not in _ELEMENTWISE or repeat is None or repeat.kind != "BROADCAST_TO":
            continue
        alone = len(readers[computed[0]]) == 1 and computed[0] not in graph.outputs
        if not alone or any(each.size != 1 for each in stored) or tensors[repeat.inputs[0]].dtype != "float32":
            continue
        small = f"{operator.outputs[0]}/once"
        tensors[small] = replace(tensors[repeat.inputs[0]], name=small)
        inputs = tuple(repeat.inputs[0] if name == computed[0] else name for name in operator.inputs)
        operators[operators.index(repeat)] = replace(operator, inputs=inputs, outputs=(small,))
        operators[place] = replace(repeat, inputs=(small, *repeat.inputs[1:]), outputs=operator.outputs)
        return pruned(operators, tensors, graph.inputs, graph.outputs)
    return graph


def variances(graph: Graph) -> Graph:
    """The mean of squares less the square of the mean is the mean of the squares of what differs from the mean."""
    makers, tensors, same = graph.makers(), dict(graph.tensors), dict[str, str]()
    readers, operators = graph.readers(), list[Operator]()
    for operator in graph.operators:
        operator = replace(operator, inputs=tuple(same.get(name, name) for name in operator.inputs))
        means = _means(operator, graph, makers)
        if means is None:
            operators.append(operator)
            continue
        mean, result = means, operator.outputs[0]
        source, small = mean.inputs[0], mean.outputs[0]
        apart, squared, variance = (f"{result}/{part}" for part in ("apart", "squared", "variance"))
        for name in (apart, squared):
            tensors[name] = replace(tensors[source], name=name, data=None)
        tensors[variance] = replace(tensors[small], name=variance)
        shape = tensors[result].shape
        stored = f"{result}/shape"
        tensors[stored] = Tensor(stored, (len(shape),), "int32", np.asarray(shape, np.int32))
        operators += [
            Operator("SUB", (source, small), (apart,), Sub()),
            Operator("MUL", (apart, apart), (squared,), Mul()),
            replace(mean, inputs=(squared, *mean.inputs[1:]), outputs=(variance,)),
            Operator("RESHAPE", (variance, stored), (result,), Reshape(shape)),
        ]
        for reader in readers.get(result, ()):
            bounds = [array for name in reader.inputs if (array := graph.constant(name)) is not None]
            low = len(bounds) == 1 and bounds[0].size == 1 and float(bounds[0].reshape(-1)[0]) <= 0
            keeps = reader.kind == "RELU" or (reader.kind == "MAXIMUM" and low)  # what is above zero, as a variance is
            if keeps and reader.outputs[0] not in graph.outputs:
                same[reader.outputs[0]] = result
    return pruned(operators, tensors, graph.inputs, graph.outputs)


def _means(operator: Operator, graph: Graph, makers: dict[str, Operator]) -> Operator | None:
    """Returns the MEAN of x where an operator is MEAN(x * x) - MEAN(x) ** 2."""
    square = makers.get(operator.inputs[1]) if operator.kind == "SUB" else None
    if square is None or square.kind != "MUL" or square.inputs[0] != square.inputs[1] or operator.activation != "NONE":
        return None
    both, mean = _mean(operator.inputs[0], graph, makers), _mean(square.inputs[0], graph, makers)
    if both is None or mean is None:
        return None
    axes = [np.asarray(graph.constant(each.inputs[1])) for each in (both, mean)]
    shapes = [graph.tensors[each.inputs[0]].shape for each in (both, mean)]
    if shapes[0] != shapes[1] or not np.array_equal(axes[0], axes[1]):
        return None
    squares = makers.get(_whole(both.inputs[0], makers))
    is_square = squares is not None and squares.kind == "MUL" and squares.inputs[0] == squares.inputs[1]
    alike = is_square and squares is not None and squares.inputs[0] == _whole(mean.inputs[0], makers)
    size = len(graph.tensors[mean.outputs[0]].shape) == len(shapes[1])
    return mean if alike and size else None


def _whole(name: str, makers: dict[str, Operator]) -> str:
    """Returns the tensor whose values another has, under whatever shape."""
    while (maker := makers.get(name)) is not None and maker.kind == "RESHAPE":
        name = maker.inputs[0]
    return name


def _mean(name: str, graph: Graph, makers: dict[str, Operator]) -> Operator | None:
    """Returns the MEAN that a tensor is, under whatever shape and by factors that cancel."""
    factor = 1.0
    while (maker := makers.get(name)) is not None:
        if maker.kind == "MEAN":
            return maker if abs(factor - 1) < 1e-5 else None
        stored = [array for each in maker.inputs if (array := graph.constant(each)) is not None]
        if maker.kind == "MUL" and len(stored) == 1 and stored[0].size == 1 and maker.activation == "NONE":
            factor *= float(stored[0].reshape(-1)[0])
            name = next(each for each in maker.inputs if graph.constant(each) is None)
        elif maker.kind == "RESHAPE":
            name = maker.inputs[0]
        else:
            return None
    return None


def means_for_sums(graph: Graph) -> Graph:
    """A SUM of real numbers over stored axes is a MEAN times their number: a sum of quantised values rescales none."""
    tensors, operators, readers = dict(graph.tensors), list[Operator](), graph.readers()
    scaled: dict[str, float] = {}
    for operator in graph.operators:
        source = tensors[operator.inputs[0]]
        axes = graph.constant(operator.inputs[1]) if operator.kind == "SUM" else None
        if operator.outputs[0] in scaled:  # a product that takes the number of a sum in front of it
            factor, number = f"{operator.outputs[0]}/factor", scaled[operator.outputs[0]]
            tensors[factor] = Tensor(factor, (), "float32", np.asarray(number, np.float32))
            computed = next(name for name in operator.inputs if graph.constant(name) is None)
            operator = replace(operator, inputs=(computed, factor))
        if axes is None or source.dtype != "float32":
            operators.append(operator)
            continue
        result = operator.outputs[0]
        count = math.prod(source.shape[place] for place in {int(axis) % len(source.shape) for axis in axes.reshape(-1)})
        users = readers.get(result, [])
        stored = _number(users[0], graph) if len(users) == 1 and result not in graph.outputs else None
        if stored is not None:  # a mean that was written as a sum and a product
            whole = stored * count
            scaled[users[0].outputs[0]] = 1.0 if abs(whole - 1) < _SAME else whole
            operators.append(replace(operator, kind="MEAN"))
            continue
        mean, times = f"{result}/mean", f"{result}/count"
        tensors[times] = Tensor(times, (), "float32", np.asarray(count, np.float32))
        tensors[mean] = replace(tensors[result], name=mean)
        operators.append(replace(operator, kind="MEAN", outputs=(mean,)))
        operators.append(Operator("MUL", (mean, times), operator.outputs, Mul()))
    return pruned(operators, tensors, graph.inputs, graph.outputs)


def _number(operator: Operator, graph: Graph) -> float | None:
    """Returns the one stored number that an operator multiplies a tensor by, None where it does something else."""
    stored = [array for name in operator.inputs if (array := graph.constant(name)) is not None]
    if operator.kind != "MUL" or len(stored) != 1 or stored[0].size != 1 or stored[0].dtype != np.float32:
        return None
    return float(stored[0].reshape(-1)[0])


def roots_of_squares(graph: Graph) -> Graph:
    """A root of sums of squares is the sum times its inverse root: 16 bits hold what 8 bits lose of squares."""
    makers, tensors = graph.makers(), dict(graph.tensors)
    operators: list[Operator] = []
    for operator in graph.operators:
        if operator.kind != "SQRT" or not sums_squares(operator.inputs[0], graph, makers):
            operators.append(operator)
            continue
        source, result = operator.inputs[0], operator.outputs[0]
        tiny, above, inverse = (f"{result}/{part}" for part in ("tiny", "above", "inverse"))
        tensors[tiny] = Tensor(tiny, (), "float32", np.asarray(_TINY, np.float32))
        for name in (above, inverse):
            tensors[name] = replace(tensors[source], name=name)
        operators += [
            Operator("ADD", (source, tiny), (above,), Add()),
            Operator("RSQRT", (above,), (inverse,)),
            Operator("MUL", (source, inverse), operator.outputs, Mul()),
        ]
    return pruned(operators, tensors, graph.inputs, graph.outputs)


def sums_squares(name: str, graph: Graph, makers: dict[str, Operator], summed: bool = False) -> bool:
    """Tells whether a tensor is made of sums or means of squares; squares alone are a function, which has a table."""
    maker = makers.get(name)
    if maker is None or maker.kind not in _INSIDE:
        return False
    if maker.kind == "MUL" and len(maker.inputs) == 2 and maker.inputs[0] == maker.inputs[1]:
        return summed
    computed = [each for each in maker.inputs if each and graph.constant(each) is None]
    summed = summed or maker.kind == "MEAN" or (maker.kind == "ADD" and len(computed) > 1)
    return bool(computed) and all(sums_squares(each, graph, makers, summed) for each in computed)
