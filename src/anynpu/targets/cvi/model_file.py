"""The file that the compiler writes: is it whole, for which chip, and the time in it, which no two builds share.

cvimodel   "CviModel", u32 size of the description, version 1.x, MD5 of all that follows the header, chip, 2 bytes
bmodel     u32 0xff55aaee, u32 size of the header, u32 size of the description, u32 size of the rest
"""

from __future__ import annotations

import hashlib
import re
import struct
from pathlib import Path

from anynpu.errors import IntegrityError

_CVI = struct.Struct("<8sIBB16s16s2s")
_BM = struct.Struct("<IIIQ")
_BM_MAGIC = 0xFF55AAEE
_CVI_TIME = re.compile(rb"20\d\d-\d\d-\d\d \d\d:\d\d:\d\d")
_BM_TIME = re.compile(rb"[A-Z][a-z]{2} [A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d 20\d\d")


def settle(path: Path, processor: str) -> None:
    """Checks that the file is whole and for that chip, and takes the time of the build out of it."""
    data = path.read_bytes()
    if path.suffix == ".cvimodel":
        if len(data) < _CVI.size or not data.startswith(b"CviModel"):
            raise IntegrityError("it is not a cvimodel")
        magic, size, major, minor, digest, chip, rest = _CVI.unpack_from(data)
        body = data[_CVI.size :]
        if len(body) < size or hashlib.md5(body, usedforsecurity=False).digest() != digest:
            raise IntegrityError("it is cut short or damaged: its own MD5 does not hold")
        named = chip.rstrip(b"\0").decode("ascii", "replace")
        if named != processor:
            raise IntegrityError(f"it is for {named}, not {processor}")
        body = _CVI_TIME.sub(b"2000-01-01 00:00:00", body[:size], count=1) + body[size:]
        digest = hashlib.md5(body, usedforsecurity=False).digest()
        path.write_bytes(_CVI.pack(magic, size, major, minor, digest, chip, rest) + body)
        return
    if len(data) < _BM.size or _BM.unpack_from(data)[0] != _BM_MAGIC:
        raise IntegrityError("it is not a bmodel")
    _, header, described, rest = _BM.unpack_from(data)
    if len(data) != header + described + rest:
        raise IntegrityError(f"it is {len(data)} bytes long and says {header + described + rest}: cut short or damaged")
    front = _BM_TIME.sub(b"Sat Jan  1 00:00:00 2000", data[: header + described], count=1)
    path.write_bytes(front + data[header + described :])
