"""Kernel modules and shared libraries, read as files: what they say of themselves and which symbols they hold.

Nothing is loaded and no program is called; a damaged file is IntegrityError.
"""

from __future__ import annotations

import gzip
import lzma
import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass

from anynpu.errors import IntegrityError, ToolMissing

SIGNED = b"~Module signature appended~\n"
SYMTAB, DYNSYM, NO_BITS = 2, 11, 8
UNDEFINED, LOCAL = 0, 0
MOST_SECTIONS = 0xFF00
MOST_BYTES = 256 << 20
MACHINES = {0x3E: "x86-64", 0xB7: "aarch64", 0x28: "arm", 0xF3: "riscv", 0x03: "x86"}


@dataclass(frozen=True)
class Section:
    """A part of an ELF file."""

    name: str
    kind: int
    offset: int
    size: int
    link: int
    entry_size: int


@dataclass(frozen=True)
class Elf:
    """A 64-bit little-endian ELF file: the machine it is for and its parts."""

    data: bytes
    machine: str
    sections: tuple[Section, ...]

    def content(self, name: str) -> bytes:
        """Returns the content of a section, empty where the file has none of that name."""
        found = next((s for s in self.sections if s.name == name and s.kind != NO_BITS), None)
        return self.data[found.offset : found.offset + found.size] if found else b""

    def symbols(self, kind: int = SYMTAB) -> frozenset[str]:
        """Returns the names that the file defines for others: of its symbol table or of its dynamic one."""
        tables = [s for s in self.sections if s.kind == kind]
        return frozenset(name for table in tables for name in self._defined(table))

    def _defined(self, table: Section) -> Iterator[str]:
        if table.entry_size != 24 or table.link >= len(self.sections):
            raise IntegrityError("a damaged symbol table")
        strings = self.sections[table.link]
        names = self.data[strings.offset : strings.offset + strings.size]
        body = self.data[table.offset : table.offset + table.size // 24 * 24]
        for name_at, info, _, section, _, _ in struct.iter_unpack("<IBBHQQ", body):
            if section != UNDEFINED and info >> 4 != LOCAL and name_at:
                yield _text(names, name_at)


@dataclass(frozen=True)
class KernelModule:
    """What a kernel module says of itself."""

    info: tuple[tuple[str, str], ...]
    symbols: frozenset[str]
    machine: str
    signed: bool

    def values(self, key: str) -> tuple[str, ...]:
        """Returns every value of a key of its information, such as alias, firmware or import_ns."""
        return tuple(value for name, value in self.info if name == key)

    @property
    def vermagic(self) -> str:
        return next(iter(self.values("vermagic")), "")

    @property
    def release(self) -> str:
        """The kernel that it was built for."""
        return self.vermagic.partition(" ")[0]


def read_module(data: bytes) -> KernelModule:
    """Returns what a kernel module says of itself, packed (.gz, .xz, .zst) or not."""
    plain = unpack(data)
    elf = read_elf(plain)
    parts = [part.decode("utf-8", "replace").partition("=") for part in elf.content(".modinfo").split(b"\0") if part]
    info = tuple((name, value) for name, sign, value in parts if sign)
    return KernelModule(info, elf.symbols(), elf.machine, plain.endswith(SIGNED))


def unpack(data: bytes) -> bytes:
    """Returns the content of a packed module."""
    try:
        if data[:2] == b"\x1f\x8b":
            return zlib.decompressobj(31).decompress(data, MOST_BYTES)
        if data[:6] == b"\xfd7zXZ\0":
            return lzma.LZMADecompressor(memlimit=MOST_BYTES).decompress(data, MOST_BYTES)
        if data[:4] == b"\x28\xb5\x2f\xfd":
            return _zstd(data)
    except (zlib.error, lzma.LZMAError, gzip.BadGzipFile, EOFError, ValueError) as error:
        raise IntegrityError(f"a damaged packed file ({error})") from None
    return data


def _zstd(data: bytes) -> bytes:
    """Unpacks with the standard library from Python 3.14, with a package before."""
    from importlib import import_module

    for name in ("compression.zstd", "zstandard"):
        try:
            opener = import_module(name)
        except ImportError:
            continue
        unpacked: bytes = opener.ZstdDecompressor().decompress(data, MOST_BYTES)
        return unpacked
    raise ToolMissing("a module packed with zstd cannot be read by this Python", "pip install zstandard")


def read_elf(data: bytes) -> Elf:
    """Returns the parts of a 64-bit little-endian ELF file."""
    if data[:6] != b"\x7fELF\x02\x01":
        raise IntegrityError("not a 64-bit ELF file")
    try:
        (machine,) = struct.unpack_from("<H", data, 18)
        (start,) = struct.unpack_from("<Q", data, 40)
        size, count, names = struct.unpack_from("<HHH", data, 58)
        if count > MOST_SECTIONS or (count and (names >= count or size < 64)):
            raise IntegrityError("a damaged ELF header")
        rows = [struct.unpack_from("<IIQQQQIIQQ", data, start + index * size) for index in range(count)]
    except (struct.error, OverflowError) as error:
        raise IntegrityError(f"not a whole ELF file ({error})") from None
    if any(row[1] != NO_BITS and row[4] + row[5] > len(data) for row in rows):
        raise IntegrityError("not a whole ELF file (a section lies beyond its end)")
    table = data[rows[names][4] : rows[names][4] + rows[names][5]] if rows else b""
    sections = tuple(Section(_text(table, r[0]), r[1], r[4], r[5], r[6], r[9]) for r in rows)
    return Elf(data, MACHINES.get(machine, f"machine {machine}"), sections)


def _text(table: bytes, at: int) -> str:
    end = table.find(b"\0", at)
    if not 0 <= at <= end:
        raise IntegrityError("a name lies outside of its table")
    return table[at:end].decode("utf-8", "replace")
