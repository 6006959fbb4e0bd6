"""What a firmware occupies, section by section, read from its ELF file."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from anynpu.errors import IntegrityError

ALLOCATED, WRITABLE, NO_BITS = 0x2, 0x1, 8
MOST_SECTIONS = 0xFF00


@dataclass(frozen=True)
class Section:
    """A part of the firmware that takes memory on the chip; initialised data takes both, its image and itself."""

    name: str
    flash_bytes: int
    ram_bytes: int


@dataclass(frozen=True)
class Footprint:
    """What a whole firmware occupies, with its application, board layer and C library, or what single objects do."""

    sections: tuple[Section, ...]

    @property
    def flash_bytes(self) -> int:
        return sum(section.flash_bytes for section in self.sections)

    @property
    def ram_bytes(self) -> int:
        return sum(section.ram_bytes for section in self.sections)

    def merged(self) -> Footprint:
        """Returns the same with one section for each name, the largest in flash first."""
        found: dict[str, Section] = {}
        for section in self.sections:
            other = found.get(section.name, Section(section.name, 0, 0))
            flash, ram = other.flash_bytes + section.flash_bytes, other.ram_bytes + section.ram_bytes
            found[section.name] = Section(section.name, flash, ram)
        return Footprint(tuple(sorted(found.values(), key=lambda s: (-s.flash_bytes, -s.ram_bytes, s.name))))

    def to_json(self) -> dict[str, Any]:
        """Returns the sections and their sums as plain data."""
        return {
            "flash_bytes": self.flash_bytes,
            "ram_bytes": self.ram_bytes,
            "sections": [vars(section) for section in self.sections],
        }


def is_elf(path: Path) -> bool:
    """Returns whether a file is an ELF file; programs of macOS and Windows are not."""
    with path.open("rb") as stream:
        return stream.read(4) == b"\x7fELF"


def footprint(path: Path) -> Footprint:
    """Returns what the ELF file `path` occupies on the chip."""
    data = path.read_bytes()
    try:
        return Footprint(_sections(data))
    except (struct.error, ValueError, UnicodeDecodeError) as error:
        raise IntegrityError(f"{path}: not a whole ELF file ({error})") from error


def _sections(data: bytes) -> tuple[Section, ...]:
    if data[:4] != b"\x7fELF" or data[4:5] not in (b"\1", b"\2"):
        raise ValueError("no ELF header")
    wide, order = data[4] == 2, ">" if data[5] == 2 else "<"
    start = struct.unpack_from(order + ("Q" if wide else "I"), data, 40 if wide else 32)[0]
    size, count, names = struct.unpack_from(order + "HHH", data, 58 if wide else 46)
    if count > MOST_SECTIONS or names >= count:
        raise ValueError(f"{count} sections")
    layout = order + ("IIQQQQ" if wide else "IIIIII")  # name, type, flags, address, offset, size
    headers = [struct.unpack_from(layout, data, start + index * size) for index in range(count)]
    table = headers[names][4]
    found = []
    for name_at, kind, flags, _, _, length in headers:
        if flags & ALLOCATED and length:
            name = data[table + name_at : data.index(b"\0", table + name_at)].decode("utf-8")
            found.append(Section(name, 0 if kind == NO_BITS else length, length if flags & WRITABLE else 0))
    return tuple(found)
