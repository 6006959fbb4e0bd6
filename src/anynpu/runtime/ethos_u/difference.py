"""Where a compiled model parts from the one it was compiled from: the first operation whose tensor is another one."""

from __future__ import annotations

import csv
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from anynpu.errors import ModelRefused
from anynpu.runtime.ethos_u.layers import read_layers
from anynpu.runtime.ethos_u.stream import Operation
from anynpu.runtime.tflite_file import read_model
from anynpu.runtime.tflm import open_micro
from anynpu.tensors import Array


@dataclass(frozen=True)
class Written:
    """What one operation stored: (samples, height, width, channels)."""

    stream: int
    op: Operation
    values: Array


def first_difference(twin: Any, origins: Path, source: bytes, inputs: Sequence[Array]) -> str:
    """Returns the first operation whose result is not TFLite-Micro's, or an empty string where none can be named.

    `inputs` is one sample. Only operators whose whole output is found in the stream can be compared.
    """
    with origins.open(encoding="utf-8", newline="") as rows:
        layers = {(int(r["stream"]), int(r["word"])): r for r in csv.DictReader(rows)}
    parts: dict[int, list[Written]] = {}
    for written in twin.trace([value[np.newaxis] for value in inputs]):
        if row := layers.get((written.stream, written.op.word)):
            parts.setdefault(int(row["operator"]), []).append(written)
    try:
        tensors = _outputs(source, inputs)
    except ModelRefused:  # no memory for every tensor of a large net
        return ""
    behind = _read_from_tables(source, parts.keys())
    for index, pieces in parts.items():
        first = pieces[0].op
        row = layers[pieces[0].stream, first.word]
        moved = len(pieces) > 1 or row["kind"] == "TRANSPOSE"  # it may be stored in another order than it lies in
        counts: list[tuple[int, str, int]] = []
        for other, wanted in (tensors[number] for number in behind[index]):
            wholes = arranged([piece.values for piece in pieces], wanted)  # by rows or by channels, whichever fits
            if moved and any(np.array_equal(np.sort(each, axis=None), np.sort(wanted, axis=None)) for each in wholes):
                wholes = [wanted]
            counts += [(int((whole != wanted).sum()), other, wanted.size) for whole in wholes]
        count, name, size = min(counts, default=(0, "", 0))
        if count:
            return f"{first.title} of {row['kind']} {row['name']}: tensor {name}, {count} of {size} values"
    return ""


def _read_from_tables(source: bytes, separate: Collection[int]) -> dict[int, list[int]]:
    """Returns for each operator itself and those behind it that have no operation of their own: a function may be read
    from a table on the way out."""
    operators = read_model(source).subgraphs[0].operators
    readers: dict[int, list[int]] = {}
    for number, operator in enumerate(operators):
        for tensor in operator.inputs:
            readers.setdefault(int(tensor), []).append(number)
    behind: dict[int, list[int]] = {}
    for first in separate:
        chain = [first]
        while len(after := readers.get(int(operators[chain[-1]].outputs[0]), [])) == 1 and after[0] not in separate:
            chain += after
        behind[first] = chain
    return behind


def _outputs(source: bytes, inputs: Sequence[Array]) -> list[tuple[str, Array]]:
    """Returns name and values of the first output of every operator of a TFLite file, as TFLite-Micro computes them."""
    graph = read_model(source).subgraphs[0]
    interpreter = open_micro(source, keeps_tensors=True)
    for number, value in enumerate(inputs):
        interpreter.set_input(np.ascontiguousarray(value), number)
    interpreter.invoke()
    indices = [int(op.outputs[0]) for op in graph.operators]
    return [
        (
            (graph.tensors[i].name or b"").decode("utf-8", "replace"),
            np.asarray(interpreter.GetTensor(i, 0)["tensor_data"]),
        )
        for i in indices
    ]


def layer_values(twin: Any, origins: Path, inputs: Sequence[Array]) -> dict[int, list[Array]]:
    """Returns what the operations of each operator of the source store for one sample, in their order."""
    layers = read_layers(origins)
    pieces: dict[int, list[Array]] = {}
    for written in twin.trace([value[np.newaxis] for value in inputs]):
        if layer := layers.get((written.stream, written.op.word)):
            pieces.setdefault(layer.operator, []).append(written.values)
    return pieces


def arranged(pieces: Sequence[Array], wanted: Array) -> list[Array]:
    """Returns the ways in which the last pieces make a tensor of the shape that is wanted; none where they do not."""
    last: list[Array] = []
    for piece in reversed(pieces):
        last.insert(0, piece)
        if sum(p.size for p in last) >= wanted.size:
            break
    if sum(p.size for p in last) != wanted.size:
        return []
    if len(last) == 1:
        return [last[0].reshape(wanted.shape)]  # element-wise operations see a tensor as one long row
    ways = []
    for axis in (1, 3, 2):
        shapes = {tuple(n for a, n in enumerate(p.shape) if a != axis) for p in last}
        if len(shapes) == 1:
            whole = np.concatenate(last, axis=axis)
            if [n for n in whole.shape if n > 1] == [n for n in wanted.shape if n > 1]:
                ways.append(whole.reshape(wanted.shape))
    return ways
