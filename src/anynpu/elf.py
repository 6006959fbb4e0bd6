"""ELF files read as data: of 32 or 64 bits and either byte order; a damaged one raises IntegrityError.

Nothing is loaded and no program is called. No offset or length in what is returned leads out of the file.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from anynpu.errors import IntegrityError

MAGIC = b"\x7fELF"
EXECUTABLE = 2
CURRENT = (1, 1)
EMPTY, SYMTAB, NO_BITS, DYNSYM = 0, 2, 8, 11
WRITABLE, ALLOCATED = 0x1, 0x2
UNDEFINED, LOCAL = 0, 0
MOST_SECTIONS = 0xFF00
MACHINES = {0x3E: "x86-64", 0xB7: "aarch64", 0x28: "arm", 0xF3: "riscv", 0x03: "x86"}
_NOT_WHOLE = "not a whole ELF file"


@dataclass(frozen=True)
class Section:
    """A part of the file; one of the kind NO_BITS has a size but no bytes."""

    name: str
    kind: int
    flags: int
    offset: int
    size: int
    link: int
    entry_size: int


@dataclass(frozen=True)
class Elf:
    """What the file is for, and its parts."""

    data: bytes | memoryview
    bits: int
    order: str
    """As struct writes it: "<" or ">"."""
    kind: int
    machine: int
    versions: tuple[int, int]
    """Of its first bytes and of its header."""
    sections: tuple[Section, ...]

    @property
    def machine_name(self) -> str:
        return MACHINES.get(self.machine, f"machine {self.machine}")

    def content(self, name: str) -> bytes:
        """Returns the content of a section, empty where the file has none of that name."""
        section = next((s for s in self.sections if s.name == name and s.kind != NO_BITS), None)
        return bytes(self.data[section.offset : section.offset + section.size]) if section else b""

    def symbols(self, kind: int = SYMTAB) -> frozenset[str]:
        """Returns the names that the file defines for others: of its symbol table or of its dynamic one."""
        form, symbols = struct.Struct(self.order + ("IBBHQQ" if self.bits == 64 else "IIIBBH")), set()
        for table in (each for each in self.sections if each.kind == kind):
            if table.entry_size != form.size or table.link >= len(self.sections):
                raise IntegrityError("a damaged symbol table")
            strings = self.sections[table.link]
            names = bytes(self.data[strings.offset : strings.offset + strings.size])
            for row in form.iter_unpack(self.data[table.offset : table.offset + table.size // form.size * form.size]):
                info, section = (row[1], row[3]) if self.bits == 64 else (row[3], row[5])
                if section != UNDEFINED and info >> 4 != LOCAL and row[0]:
                    symbols.add(text_at(names, row[0]))
        return frozenset(symbols)


def read_elf(data: bytes | memoryview) -> Elf:
    """Returns what an ELF file is for and its sections, after its segments were found to lie inside it."""
    if bytes(data[:4]) != MAGIC or len(data) < 7 or data[4] not in (1, 2) or data[5] not in (1, 2):
        raise IntegrityError("not an ELF file")
    wide, order = data[4] == 2, "<>"[data[5] - 1]
    try:
        head = struct.unpack_from(order + ("HHIQQQ" if wide else "HHIIII"), data, 16)
        kind, machine, version, _, segments_at, at = head
        segment_size, segments, size, count, names = struct.unpack_from(order + "5H", data, 54 if wide else 42)
        if segments and segment_size != (56 if wide else 32):
            raise IntegrityError(f"{_NOT_WHOLE} (its list of segments is damaged)")
        for index in range(segments):
            start = segments_at + index * segment_size
            place, length = struct.unpack_from(order + ("8xQ16xQ" if wide else "4xI8xI"), data, start)
            if place + length > len(data):
                raise IntegrityError(f"{_NOT_WHOLE} (a segment leads out of it)")
        form = struct.Struct(order + ("IIQQQQIIQQ" if wide else "10I"))
        if count > MOST_SECTIONS or (count and (names >= count or size != form.size)):
            raise IntegrityError("an ELF file with a damaged list of sections")
        rows = [form.unpack_from(data, at + index * size) for index in range(count)]
    except (struct.error, OverflowError) as error:
        raise IntegrityError(f"{_NOT_WHOLE} ({error})") from None
    if any(row[1] not in (NO_BITS, EMPTY) and row[4] + row[5] > len(data) for row in rows):
        raise IntegrityError(f"{_NOT_WHOLE} (a section leads out of it)")
    if rows and rows[names][1] in (NO_BITS, EMPTY):
        raise IntegrityError("an ELF file without the names of its sections")
    table = bytes(data[rows[names][4] : rows[names][4] + rows[names][5]]) if rows else b""
    sections = tuple(
        Section(text_at(table, row[0]) if row[1] != EMPTY else "", row[1], row[2], row[4], row[5], row[6], row[9])
        for row in rows
    )
    return Elf(data, 64 if wide else 32, order, kind, machine, (data[6], version), sections)


def text_at(table: bytes, at: int) -> str:
    """Returns the zero-terminated text at an offset of a table of names."""
    end = table.find(b"\0", at)
    if not 0 <= at <= end:
        raise IntegrityError("an ELF file with a name outside of its table")
    return table[at:end].decode("utf-8", "replace")
