"""The form of a TFLite file: every offset, length and index stays inside it.

LiteRT and TFLite-Micro trust the file that they are given, and a damaged one ends the process that reads it.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping
from typing import Any

import numpy as np

from anynpu.errors import IntegrityError

IDENTIFIER = b"TFL3"
MOST_TABLES = 2_000_000
WIDTHS = {0: 4, 1: 2, 2: 4, 3: 1, 4: 8, 6: 1, 7: 2, 8: 8, 9: 1, 10: 8, 11: 16, 12: 8, 15: 4, 16: 2}
"""Bytes an element, by the number of the type; types that are packed or have no fixed size are not here."""

Field = int | str | list[Any]
"""Bytes of a number; "text"; the name of a table; [bytes] or [table] for a vector."""
UNION = "union"
FIELDS: Mapping[str, Mapping[int, Field]] = {
    "Model": {0: 4, 1: ["Code"], 2: ["Graph"], 3: "text", 4: ["Buffer"], 5: [4], 6: ["Metadata"], 7: ["Signature"]},
    "Code": {0: 1, 1: "text", 2: 4, 3: 4},
    "Graph": {0: ["Tensor"], 1: [4], 2: [4], 3: ["Operator"], 4: "text", 5: 4},
    "Buffer": {0: [1], 1: 8, 2: 8},
    "Metadata": {0: "text", 1: 4},
    "Signature": {0: ["TensorMap"], 1: ["TensorMap"], 2: "text", 4: 4},
    "TensorMap": {0: "text", 1: 4},
    "Tensor": {0: [4], 1: 1, 2: 4, 3: "text", 4: "Quantization", 5: 1, 6: "Sparsity", 7: [4], 8: 1, 9: ["Variant"]},
    "Variant": {0: [4], 1: 1, 2: 1},
    "Quantization": {0: [4], 1: [4], 2: [4], 3: [8], 4: 1, 5: UNION, 6: 4},
    "Sparsity": {0: [4], 1: [4], 2: [UNION]},
    "Operator": {0: 4, 1: [4], 2: [4], 3: 1, 4: UNION, 5: [1], 6: 1, 7: [1], 8: [4], 9: 8, 10: 8, 11: 1, 12: UNION},
    UNION: {},
}


def check(data: bytes, name: str) -> None:
    """Raises IntegrityError for a file that an interpreter would follow out of its memory."""
    try:
        _Form(data).model()
    except (struct.error, _Damage) as error:
        raise IntegrityError(f"{name}: is a damaged TFLite file: {error}", "build or fetch it again") from None


class _Damage(Exception):
    """What is wrong with the file."""


class _Form:
    """One file, walked from its root; every table is met once."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.seen: dict[tuple[str, int], dict[int, Any]] = {}

    def number(self, at: int, width: int, signed: bool = False) -> int:
        if at < 0 or at + width > len(self.data):
            raise _Damage(f"an offset leads to byte {at} of {len(self.data)}")
        return int.from_bytes(self.data[at : at + width], "little", signed=signed)

    def table(self, at: int, kind: str) -> dict[int, Any]:
        """Returns the fields of a table: numbers unsigned, vectors of numbers as (start, count, width)."""
        if (kind, at) in self.seen:
            return self.seen[kind, at]
        if len(self.seen) > MOST_TABLES:
            raise _Damage(f"it has more than {MOST_TABLES} tables")
        fields = self.seen[kind, at] = {}
        vtable = at - self.number(at, 4, signed=True)
        length, size = self.number(vtable, 2), self.number(vtable + 2, 2)
        if length < 4 or length % 2:
            raise _Damage(f"the table at byte {at} has a head of {length} bytes")
        self.number(vtable + length - 1, 1)
        self.number(at + size - 1, 1)
        for index in range((length - 4) // 2):
            offset = self.number(vtable + 4 + 2 * index, 2)
            if not offset:
                continue
            field = FIELDS[kind].get(index, 1)
            width = field if isinstance(field, int) else 4
            if offset + width > size:
                raise _Damage(f"field {index} of the table at byte {at} is outside of it")
            fields[index] = self.field(at + offset, field)
        return fields

    def field(self, at: int, field: Field) -> Any:
        if isinstance(field, int):
            return self.number(at, field)
        place = at + self.number(at, 4)
        if field == "text":
            return self.vector(place, 1)
        if isinstance(field, str):
            return self.table(place, field)
        (element,) = field
        if isinstance(element, int):
            return self.vector(place, element)
        start, count, _ = self.vector(place, 4)
        return [self.table(p, element) for p in (start + 4 * i + self.number(start + 4 * i, 4) for i in range(count))]

    def vector(self, at: int, width: int) -> tuple[int, int, int]:
        count = self.number(at, 4)
        if at + 4 + count * width > len(self.data):
            raise _Damage(f"a list of {count} at byte {at} is longer than the file")
        return at + 4, count, width

    def integers(self, vector: tuple[int, int, int] | None) -> list[int]:
        if vector is None:
            return []
        start, count, width = vector
        return [int(value) for value in np.frombuffer(self.data, f"<i{width}", count, start)]

    def model(self) -> None:
        """Raises unless tables, vectors and the indices that graphs are made of lie inside."""
        if self.data[4:8] != IDENTIFIER:
            raise _Damage("its bytes 4 to 7 should read TFL3")
        model = self.table(self.number(0, 4), "Model")
        codes, graphs, buffers = (model.get(index, []) for index in (1, 2, 4))
        if not graphs:
            raise _Damage("it has no graph")
        sizes = [self.stored(buffer) for buffer in buffers]
        for graph in graphs:
            tensors = graph.get(0, [])
            for number, tensor in enumerate(tensors):
                self.tensor(number, tensor, sizes)
            for index in self.integers(graph.get(1)) + self.integers(graph.get(2)):
                _inside(index, len(tensors), "tensor of the graph's borders", least=0)
            for number, operator in enumerate(graph.get(3, [])):
                _inside(operator.get(0, 0), len(codes), f"operator code of operator {number}", least=0)
                for index in (i for part in (1, 2, 8) for i in self.integers(operator.get(part))):
                    _inside(index, len(tensors), f"tensor of operator {number}", least=-1)

    def stored(self, buffer: dict[int, Any]) -> int:
        """Returns how many bytes a buffer holds, in the flatbuffer or behind it."""
        if 0 in buffer and buffer[0][1]:
            return int(buffer[0][1])
        offset, size = buffer.get(1, 0), buffer.get(2, 0)
        if offset > 1 and offset + size > len(self.data):
            raise _Damage(f"a buffer of {size} bytes at byte {offset} lies behind the end of the file")
        return int(size) if offset > 1 else 0

    def tensor(self, number: int, tensor: dict[int, Any], sizes: list[int]) -> None:
        """Raises unless a constant has as many bytes as its shape says, and its scales fit its zero points."""
        _inside(tensor.get(2, 0), len(sizes), f"buffer of tensor {number}", least=0)
        shape, held = self.integers(tensor.get(0)), sizes[tensor.get(2, 0)]
        width = WIDTHS.get(tensor.get(1, 0))
        if held and width and 6 not in tensor and min(shape, default=0) >= 0 and math.prod(shape) * width > held:
            raise _Damage(f"tensor {number} of shape {shape} has {held} bytes")
        quantization = tensor.get(4, {})
        scales, points = (quantization.get(index, (0, 0, 0))[1] for index in (2, 3))
        if points and points < scales:
            raise _Damage(f"tensor {number} has {scales} scales and {points} zero points")


def _inside(index: int, count: int, what: str, least: int) -> None:
    if not least <= index < count:
        raise _Damage(f"{what}: {index} of {count}")
