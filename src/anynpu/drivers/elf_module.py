"""Kernel modules, read as files: what they say of themselves and which symbols they hold.

Nothing is loaded and no program is called; a damaged file is IntegrityError.
"""

from __future__ import annotations

import gzip
import lzma
import zlib
from dataclasses import dataclass

from anynpu.elf import read_elf
from anynpu.errors import IntegrityError, ToolMissing

SIGNED = b"~Module signature appended~\n"
MOST_BYTES = 256 << 20


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
    return KernelModule(info, elf.symbols(), elf.machine_name, plain.endswith(SIGNED))


def unpack(data: bytes) -> bytes:
    """Returns the content of a packed module."""
    try:
        if data[:2] == b"\x1f\x8b":
            return zlib.decompressobj(31).decompress(data, MOST_BYTES)
        if data[:6] == b"\xfd7zXZ\0":
            return lzma.LZMADecompressor(memlimit=MOST_BYTES).decompress(data, MOST_BYTES)
        if data[:4] == b"\x28\xb5\x2f\xfd":
            # Unpacks with the standard library from Python 3.14, with a package before
            from importlib import import_module

            for name in ("compression.zstd", "zstandard"):
                try:
                    opener = import_module(name)
                except ImportError:
                    continue
                unpacked: bytes = opener.ZstdDecompressor().decompress(data, MOST_BYTES)
                return unpacked
            raise ToolMissing("a module packed with zstd cannot be read by this Python", "pip install zstandard")
    except (zlib.error, lzma.LZMAError, gzip.BadGzipFile, EOFError, ValueError) as error:
        raise IntegrityError(f"a damaged packed file ({error})") from None
    return data
