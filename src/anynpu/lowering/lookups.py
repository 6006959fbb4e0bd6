"""Look-ups of words in tables, as sums and products: an Ethos-U55 or U65 has no other way to read a row.

A number is compared with every place of the table: the difference is cut at one, squared, and taken from a half. What
is left is a half at one place and nothing at the others, and a product with the doubled table is the row, exactly. The
number is then an input of 16 bits with a scale of one.
"""

from __future__ import annotations

import numpy as np

from anynpu.lowering.graph import Graph, Operator
from anynpu.lowering.options import Add, Cast, FullyConnected, Gather, Mul, Sub
from anynpu.lowering.rewriting import Rewriting
from anynpu.quantize.ranges import Range

MOST_COMPARED = 1 << 20
"""How many comparisons of words with places one look-up may make."""
AT_ONCE = 1 << 16
"""How many are made before their part of the table is read: each takes two bytes of the arena."""
LARGEST_NUMBER = 32767.0
MADE_REAL = Cast("int32", "float32")
"""What makes a number of a word, or of a mask, real."""


_RANGES = {"apart": Range(-1.0, 1.0), "square": Range(0.0, 1.0), "here": Range(0.0, 0.5)}
"""What the steps of a look-up need, whatever the samples say."""


def steps_of_lookups(graph: Graph) -> tuple[dict[str, Range], list[str]]:
    """Returns the ranges that the steps of look-ups need, and the tensors that keep 16 bits."""
    ranges = dict[str, Range]()
    for name in graph.tensors:
        stem, _, step = name.rpartition("/")
        if f"{stem}/places" in graph.tensors and step in _RANGES:
            ranges[name] = _RANGES[step]
    rows = [f"{name.removesuffix('/here')}/row" for name in ranges if name.endswith("/here")]
    return ranges, [name for name in rows if name in graph.tensors]


def is_small(operator: Operator, graph: Graph) -> bool:
    """Tells whether a GATHER looks words up in a table whose places they can be compared with."""
    table = graph.constant(operator.inputs[0])
    plain = isinstance(operator.options, Gather) and operator.options.axis == 0
    if table is None or table.ndim != 2 or table.dtype != np.float32 or not plain:
        return False
    return len(table) <= LARGEST_NUMBER and len(table) * graph.tensors[operator.inputs[1]].size <= MOST_COMPARED


def looked_up(at: Rewriting, operator: Operator) -> None:
    """Writes a GATHER of rows as products."""
    (table, name), result = operator.inputs, operator.outputs[0]
    rows, total = np.asarray(at.graph.constant(table)), ""
    step = max(1, AT_ONCE // at.tensors[name].size)
    for start in range(0, len(rows), step):
        stem = f"{result}/part{start}" if len(rows) > step else result
        part = rows[start : start + step]
        row = at.multiply(_here(at, name, len(part), start, stem), 2 * part.T, f"{stem}/row")
        total = at.emit("ADD", (total, row), at.shape(row), Add(), f"{stem}/sum") if total else row
    at.give(operator, at.reshape(total, at.shape(result), f"{result}/rows"))


def _here(at: Rewriting, name: str, count: int, start: int, stem: str) -> str:
    """Returns for each number a half at its place among these, the first of which is `start`, and nothing elsewhere."""
    shape = (at.tensors[name].size, count)
    column = at.reshape(name, (shape[0], 1), f"{stem}/number")
    ones = at.store(np.ones((count, 1), np.float32), f"{stem}/ones")
    places = at.store(-np.arange(start, start + count, dtype=np.float32), f"{stem}/places")
    inputs = (column, ones, places)
    apart = at.emit("FULLY_CONNECTED", inputs, shape, FullyConnected("RELU_N1_TO_1"), f"{stem}/apart")
    square = at.emit("MUL", (apart, apart), shape, Mul(), f"{stem}/square")
    half = at.store(np.full((1, 1), 0.5, np.float32), f"{stem}/half")
    return at.emit("SUB", (half, square), shape, Sub("RELU"), f"{stem}/here")
