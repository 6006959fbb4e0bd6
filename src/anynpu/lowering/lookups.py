"""Look-ups of words in tables, as sums and products: an Ethos-U55 or U65 has no other way to read a row.

A number is compared with every place of the table: the difference is cut at one, squared, and taken from a half. What
is left is a half at one place and nothing at the others, and a product with the doubled table is the row, exactly. The
number is then an input of 16 bits with a scale of one.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

import numpy as np

from anynpu.lowering.graph import Graph, Operator, pruned
from anynpu.lowering.options import Add, Cast, FullyConnected, Gather, Mul, Sub
from anynpu.lowering.rewriting import Rewriting
from anynpu.quantize.ranges import Range
from anynpu.tensors import Array

MOST_COMPARED = 1 << 20
"""How many comparisons of words with places a net may make."""
AT_ONCE = 1 << 16
"""How many are made before their part of the table is read: each takes two bytes of the arena."""
LARGEST_NUMBER = 32767.0
_MADE_REAL = Cast("int32", "float32")


_RANGES = {"apart": Range(-1.0, 1.0), "square": Range(0.0, 1.0), "here": Range(0.0, 0.5)}
"""What the steps of a look-up need, whatever the samples say."""


def settled(graph: Graph, numbers: Collection[str]) -> tuple[dict[str, Range], list[str]]:
    """Returns the ranges that the look-ups of these inputs need, and the tensors that keep 16 bits."""
    wide = [
        name
        for name in numbers
        if any(
            each.kind == "FULLY_CONNECTED" and each.outputs[0].endswith("/apart")  # compared with the places of a table
            for each in _readers(graph, name)[1]
        )
    ]
    ranges = dict.fromkeys(wide, Range(-LARGEST_NUMBER, LARGEST_NUMBER))
    for name in graph.tensors:
        stem, _, step = name.rpartition("/")
        if f"{stem}/places" in graph.tensors and step in _RANGES:
            ranges[name] = _RANGES[step]
    rows = [f"{name.removesuffix('/here')}/row" for name in ranges if name.endswith("/here")]
    return ranges, [*wide, *(name for name in rows if name in graph.tensors)]


def small_lookups(graph: Graph) -> dict[str, list[str]]:
    """Returns the inputs that nothing but look-ups in small tables read, or that are made real at once, each with the
    tensors it is moved to."""
    moved_to = dict[str, list[str]]()
    for name in graph.inputs:
        moved, users = _readers(graph, name)
        compared = sum(_compared(user, graph) for user in users)
        inside = not {*moved} & {*graph.outputs} and graph.tensors[name].dtype == "int32"
        if inside and users and compared <= MOST_COMPARED:
            moved_to[name] = moved
    return moved_to


def _readers(graph: Graph, name: str) -> tuple[list[str], list[Operator]]:
    """Returns the tensors that an input is moved to, itself first, and the operators that read them."""
    readers, moved, users = graph.readers(), [name], list[Operator]()
    for each in moved:
        for user in readers.get(each, []):
            if user.kind in ("RESHAPE", "TRANSPOSE") and user.inputs[0] == each:
                moved.append(user.outputs[0])
            else:
                users.append(user)
    return moved, users


def _compared(operator: Operator, graph: Graph) -> int:
    """Returns how many comparisons a look-up takes, none for a CAST, and more than are allowed for anything else."""
    if operator.options == _MADE_REAL:
        return 0
    table = graph.constant(operator.inputs[0])
    plain = isinstance(operator.options, Gather) and operator.options.axis == 0
    if operator.kind != "GATHER" or table is None or table.ndim != 2 or table.dtype != np.float32 or not plain:
        return MOST_COMPARED + 1
    count = graph.tensors[operator.inputs[1]].size
    return len(table) * count if len(table) <= LARGEST_NUMBER else MOST_COMPARED + 1


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
        if operator.options == _MADE_REAL and operator.inputs[0] in numbers:
            at.give(operator, operator.inputs[0])
            continue
        if operator.kind != "GATHER" or operator.inputs[1] not in numbers:
            at.operators.append(operator)
            continue
        (table, name), result = operator.inputs, operator.outputs[0]
        rows = np.asarray(graph.constant(table))
        step = max(1, AT_ONCE // tensors[name].size)
        total = ""
        for start in range(0, len(rows), step):
            stem = f"{result}/part{start}" if len(rows) > step else result
            row = _row(at, name, rows[start : start + step], start, stem)
            total = at.emit("ADD", (total, row), at.shape(row), Add(), f"{stem}/sum") if total else row
        at.give(operator, at.reshape(total, at.shape(result), f"{result}/rows"))
    return pruned(at.operators, at.tensors, graph.inputs, graph.outputs)


def _row(at: Rewriting, name: str, rows: Array, start: int, stem: str) -> str:
    """Returns for each number its row among these, the first of which has the number `start`, and zeros for others."""
    shape = (at.tensors[name].size, len(rows))
    column = at.reshape(name, (shape[0], 1), f"{stem}/number")
    ones = at.store(np.ones((len(rows), 1), np.float32), f"{stem}/ones")
    places = at.store(-np.arange(start, start + len(rows), dtype=np.float32), f"{stem}/places")
    inputs = (column, ones, places)
    apart = at.emit("FULLY_CONNECTED", inputs, shape, FullyConnected("RELU_N1_TO_1"), f"{stem}/apart")
    square = at.emit("MUL", (apart, apart), shape, Mul(), f"{stem}/square")
    half = at.store(np.full((1, 1), 0.5, np.float32), f"{stem}/half")
    here = at.emit("SUB", (half, square), shape, Sub("RELU"), f"{stem}/here")
    return at.multiply(here, 2 * rows.T, f"{stem}/row")
