"""What a firmware occupies, section by section, read from its ELF file."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from anynpu.elf import ALLOCATED, MAGIC, NO_BITS, WRITABLE, read_elf
from anynpu.errors import IntegrityError
from anynpu.schema import JsonObject


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
        sections: dict[str, Section] = {}
        for section in self.sections:
            other = sections.get(section.name, Section(section.name, 0, 0))
            flash, ram = other.flash_bytes + section.flash_bytes, other.ram_bytes + section.ram_bytes
            sections[section.name] = Section(section.name, flash, ram)
        return Footprint(tuple(sorted(sections.values(), key=lambda s: (-s.flash_bytes, -s.ram_bytes, s.name))))

    def to_json(self) -> JsonObject:
        """Returns the sections and their sums as plain data."""
        return {
            "flash_bytes": self.flash_bytes,
            "ram_bytes": self.ram_bytes,
            "sections": [vars(section) for section in self.sections],
        }


def is_elf(path: Path) -> bool:
    """Returns whether a file is an ELF file; programs of macOS and Windows are not."""
    with path.open("rb") as stream:
        return stream.read(4) == MAGIC


def footprint(path: Path) -> Footprint:
    """Returns what the ELF file `path` occupies on the chip."""
    try:
        sections = [s for s in read_elf(path.read_bytes()).sections if s.flags & ALLOCATED and s.size]
    except IntegrityError as error:
        raise IntegrityError(f"{path}: {error.message}") from error
    return Footprint(
        tuple(Section(s.name, s.size * (s.kind != NO_BITS), s.size * bool(s.flags & WRITABLE)) for s in sections)
    )
