"""A reader of FlatBuffers that believes nothing: every offset and count is checked before it is followed.

Reading is lazy and makes no copies; a damaged file raises IntegrityError. Counts have limits of their own, because many
offsets may lead to the same place: a small file could otherwise stand for a very large one.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any, NamedTuple

from anynpu.errors import IntegrityError

LONGEST_TEXT = 1024
_WIDTH = {"I": 4, "i": 4, "f": 4, "H": 2}
_FORMS = {code: struct.Struct("<" + code) for code in _WIDTH}


def number(data: memoryview, at: int, code: str) -> Any:
    """Returns the number of struct type `code` at an offset."""
    if not 0 <= at <= len(data) - _WIDTH[code]:
        raise IntegrityError(f"an offset leads to byte {at} of {len(data)}: the file is damaged or cut short")
    return _FORMS[code].unpack_from(data, at)[0]


class Table(NamedTuple):
    """A table of a FlatBuffer: fields by number, absent ones with their default."""

    data: memoryview
    at: int
    vtable: int
    vtable_size: int
    size: int

    def _field(self, index: int) -> int:
        """Returns where a field of four bytes lies, 0 for one that is absent."""
        slot = 4 + 2 * index
        if slot + 2 > self.vtable_size:
            return 0
        offset: int = number(self.data, self.vtable + slot, "H")
        if offset and not 4 <= offset <= self.size - 4:
            raise IntegrityError(f"field {index} of the table at byte {self.at} lies outside of it")
        return self.at + offset if offset else 0

    def number(self, index: int, code: str = "i") -> int:
        """Returns a whole number, 0 where it is absent."""
        at = self._field(index)
        return int(number(self.data, at, code)) if at else 0

    def table(self, index: int) -> Table | None:
        """Returns a table inside this one, None where it is absent."""
        at = self._field(index)
        return table_at(self.data, follow(self.data, at)) if at else None

    def vector(self, index: int, width: int) -> tuple[int, int]:
        """Returns where the elements of a vector begin and how many there are, all of them inside the file."""
        at = self._field(index)
        return vector_at(self.data, follow(self.data, at), width) if at else (0, 0)

    def view(self, index: int) -> memoryview:
        """Returns a vector of bytes without copying it."""
        start, count = self.vector(index, 1)
        return self.data[start : start + count]

    def numbers(self, index: int, code: str, most: int) -> tuple[Any, ...]:
        """Returns a vector of numbers; more than `most` raise."""
        start, count = self.vector(index, _WIDTH[code])
        _check_count(count, most, "numbers")
        return struct.unpack_from(f"<{count}{code}", self.data, start)

    def text(self, index: int) -> str:
        """Returns a text, "" where it is absent."""
        at = self._field(index)
        return text_at(self.data, follow(self.data, at)) if at else ""

    def texts(self, index: int, most: int) -> tuple[str, ...]:
        """Returns a vector of texts."""
        return tuple(text_at(self.data, at) for at in self._places(index, most))

    def tables(self, index: int, most: int) -> Iterator[Table]:
        """Gives the tables of a vector one after the other."""
        return (table_at(self.data, at) for at in self._places(index, most))

    def _places(self, index: int, most: int) -> Iterator[int]:
        start, count = self.vector(index, 4)
        _check_count(count, most, "entries")
        return (follow(self.data, start + 4 * i) for i in range(count))


def _check_count(count: int, most: int, what: str) -> None:
    if count > most:
        raise IntegrityError(f"a list of {count} {what} where at most {most} make sense")


def follow(data: memoryview, at: int) -> int:
    """Returns where the offset at `at` leads; it always leads forward."""
    distance: int = number(data, at, "I")
    if distance < 4 or at + distance > len(data) - 4:
        raise IntegrityError(
            f"the offset at byte {at} leads to byte {at + distance} of {len(data)}: the file is damaged or cut short"
        )
    return at + distance


def root(data: memoryview) -> Table:
    """Returns the table that the buffer is about."""
    return table_at(data, follow(data, 0))


def table_at(data: memoryview, at: int) -> Table:
    vtable = at - number(data, at, "i")
    size, table_size = number(data, vtable, "H"), number(data, vtable + 2, "H")
    if size < 4 or size % 2 or vtable + size > len(data):
        raise IntegrityError(f"the table at byte {at} has no valid list of fields: not a .cix file, or a damaged one")
    if table_size < 4 or at + table_size > len(data):
        raise IntegrityError(f"the table at byte {at} is cut short")
    return Table(data, at, vtable, size, table_size)


def vector_at(data: memoryview, at: int, width: int) -> tuple[int, int]:
    count: int = number(data, at, "I")
    if count * width > len(data) - at - 4:
        raise IntegrityError(f"a list of {count} entries at byte {at} is longer than the file: damaged or cut short")
    return at + 4, count


def text_at(data: memoryview, at: int) -> str:
    start, count = vector_at(data, at, 1)
    _check_count(count, LONGEST_TEXT, "letters")
    try:
        text = str(data[start : start + count], "utf-8")
    except UnicodeDecodeError:
        raise IntegrityError(f"the text at byte {at} is not UTF-8") from None
    if not text.isprintable():
        raise IntegrityError(f"the text at byte {at} holds control characters")
    return text
