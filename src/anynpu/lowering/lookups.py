"""Look-ups of words in small tables, as sums and products: an Ethos-U55 or U65 has no other way to read a row.

A number is compared with every place of the table: the difference is cut at one, squared, and taken from a half. What
is left is a half at one place and nothing at the others, and a product with the doubled table is the row, exactly. The
number is then an input of 16 bits with a scale of one.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

import numpy as np

from anynpu.lowering.graph import Graph, Operator, pruned
from anynpu.lowering.options import FullyConnected, Gather, Mul, Sub
from anynpu.lowering.rewriting import Rewriting
from anynpu.quantize.ranges import Range

MOST_COMPARED = 1 << 16
"""How many comparisons of words with places a net may make: each takes two bytes of the arena."""
LARGEST_NUMBER = 32767.0


_RANGES = {"apart": Range(-1.0, 1.0), "square": Range(0.0, 1.0), "here": Range(0.0, 0.5)}
"""What the steps of a look-up need, whatever the samples say."""


def settled(graph: Graph, numbers: Collection[str]) -> tuple[dict[str, Range], list[str]]:
    """Returns the ranges that the look-ups of these inputs need, and the tensors that keep 16 bits."""
    ranges = dict.fromkeys(numbers, Range(-LARGEST_NUMBER, LARGEST_NUMBER))
    for name in graph.tensors:
        stem, _, step = name.rpartition("/")
        if f"{stem}/places" in graph.tensors and step in _RANGES:
            ranges[name] = _RANGES[step]
    rows = [f"{name.removesuffix('/here')}/row" for name in ranges if name.endswith("/here")]
    return ranges, [*numbers, *(name for name in rows if name in graph.tensors)]


def small_lookups(graph: Graph) -> dict[str, list[str]]:
    """Returns the inputs that nothing but look-ups in small tables read, each with the tensors it is moved to."""
    readers, found = graph.readers(), dict[str, list[str]]()
    for name in graph.inputs:
        moved, compared = [name], 0
        for each in moved:
            for user in readers.get(each, []):
                if user.kind in ("RESHAPE", "TRANSPOSE") and user.inputs[0] == each:
                    moved.append(user.outputs[0])
                else:
                    compared += _compared(user, each, graph)
        inside = not {*moved} & {*graph.outputs} and graph.tensors[name].dtype == "int32"
        if inside and 0 < compared <= MOST_COMPARED:
            found[name] = moved
    return found


def _compared(operator: Operator, name: str, graph: Graph) -> int:
    """Returns how many comparisons a look-up takes, and more than are allowed for what is none."""
    table = graph.constant(operator.inputs[0])
    plain = isinstance(operator.options, Gather) and operator.options.axis == 0 and operator.inputs[1] == name
    if operator.kind != "GATHER" or table is None or table.ndim != 2 or table.dtype != np.float32 or not plain:
        return MOST_COMPARED + 1
    return len(table) * graph.tensors[name].size if len(table) <= LARGEST_NUMBER else MOST_COMPARED + 1


def computed_lookups(graph: Graph) -> Graph:
    """Returns the graph with those inputs as real numbers, and their rows computed."""
    numbers = [name for moved in small_lookups(graph).values() for name in moved]
    if not numbers:
        return graph
    tensors = dict(graph.tensors)
    for name in numbers:
        tensors[name] = replace(tensors[name], dtype="float32")
    at = Rewriting(graph, lambda *_: True, 0, tensors, [])
    for operator in graph.operators:
        if operator.kind != "GATHER" or operator.inputs[1] not in numbers:
            at.operators.append(operator)
            continue
        (table, name), result = operator.inputs, operator.outputs[0]
        rows = np.asarray(graph.constant(table))
        shape = (tensors[name].size, len(rows))
        column = at.reshape(name, (shape[0], 1), f"{result}/number")
        ones = at.store(np.ones((len(rows), 1), np.float32), f"{result}/ones")
        places = at.store(-np.arange(len(rows), dtype=np.float32), f"{result}/places")
        inputs = (column, ones, places)
        apart = at.emit("FULLY_CONNECTED", inputs, shape, FullyConnected("RELU_N1_TO_1"), f"{result}/apart")
        square = at.emit("MUL", (apart, apart), shape, Mul(), f"{result}/square")
        half = at.store(np.full((1, 1), 0.5, np.float32), f"{result}/half")
        here = at.emit("SUB", (half, square), shape, Sub("RELU"), f"{result}/here")
        at.give(
            operator, at.reshape(at.multiply(here, 2 * rows.T, f"{result}/row"), at.shape(result), f"{result}/rows")
        )
    return pruned(at.operators, at.tensors, graph.inputs, graph.outputs)
