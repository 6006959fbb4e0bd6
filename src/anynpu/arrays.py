"""Files of numpy arrays, read with bounded memory: the header is believed only as far as the file bears it out.

Nothing is unpickled. A damaged file raises IntegrityError, one that is whole but holds what is never read ConfigError.
"""

from __future__ import annotations

import math
import mmap
import struct
import zipfile
from pathlib import Path
from typing import IO

import numpy as np

from anynpu.errors import ConfigError, IntegrityError
from anynpu.foreign import NUMPY_FILES, mapped
from anynpu.tensors import Array

MAGIC = b"\x93NUMPY"
LFS_POINTER = b"version https://git-lfs"
MOST_BYTES = 4 << 30
KINDS = "biufcUS"
"""Truth values, integers, real and complex numbers, text; no objects, fields, dates or raw bytes."""


def read_npy(path: Path) -> Array:
    """Returns the array of an .npy file, mapped into memory, in this machine's byte order."""
    with _open(path) as stream:
        start = stream.read(64)
        if not start.startswith(MAGIC):
            raise IntegrityError(f"{path} is not an .npy file", _hint(start))
        with mapped(NUMPY_FILES, f"{path} is damaged"):
            stream.seek(0)
            _check(stream, path.stat().st_size, str(path))
            # Mapped, so that a limit reads no more than it keeps.
            return _native(np.asarray(np.load(path, mmap_mode="r", allow_pickle=False)))


def read_npz(path: Path) -> dict[str, Array]:
    """Returns the arrays of an .npz file by name, in this machine's byte order."""
    with _open(path) as stream:
        start = stream.read(64)
        if not zipfile.is_zipfile(path):
            raise IntegrityError(f"{path} is not an .npz file", _hint(start))
        with mapped(NUMPY_FILES, f"{path} is damaged"), zipfile.ZipFile(stream) as archive:
            entries = [entry for entry in archive.infolist() if not entry.is_dir()]
            size = sum(entry.file_size for entry in entries)
            if size > MOST_BYTES:
                raise ConfigError(f"{path} holds {size >> 20} MiB, at most {MOST_BYTES >> 20} are read")
            arrays = {}
            for entry in entries:
                place = f"{path}: {entry.filename}"
                with archive.open(entry) as stream:
                    _check(stream, entry.file_size, place)
                with archive.open(entry) as stream:
                    array = np.lib.format.read_array(stream, allow_pickle=False)
                    if stream.read(1):  # to the end, so that its checksum is compared
                        raise IntegrityError(f"{place} is damaged: there is more in it than an array")
                arrays[entry.filename.removesuffix(".npy")] = _native(np.asarray(array))
            return arrays


def map_npz(path: Path) -> dict[str, Array]:
    """Returns the arrays of an .npz file of ours by name, which stay in the file and take memory only where they are
    read; those that cannot be mapped are read as `read_npz` does."""
    arrays = {}
    with _open(path) as stream, mapped(NUMPY_FILES, f"{path} is damaged"), zipfile.ZipFile(stream) as archive:
        entries = archive.infolist()
        if any(entry.compress_type != zipfile.ZIP_STORED for entry in entries):
            return read_npz(path)
        content = mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ)
        for entry in entries:
            # A local header has 30 bytes, the last four of which say how long the name and what follows it are.
            ends = struct.unpack_from("<HH", content, entry.header_offset + 26)
            stream.seek(entry.header_offset + 30 + sum(ends))
            _check(stream, stream.tell() + entry.file_size, f"{path}: {entry.filename}")
            stream.seek(entry.header_offset + 30 + sum(ends))
            np.lib.format.read_magic(stream)
            shape, fortran, dtype = np.lib.format.read_array_header_1_0(stream)
            if fortran or not dtype.isnative or not math.prod(shape):
                return read_npz(path)
            flat = np.frombuffer(content, dtype, math.prod(shape), stream.tell())
            arrays[entry.filename.removesuffix(".npy")] = flat.reshape(shape)
    return arrays


def forget(array: Array) -> None:
    """Gives back the memory of the file that an array is mapped from; what is read later is read again."""
    base: object = array
    while isinstance(base, np.ndarray):
        base = base.base
    content = base.obj if isinstance(base, memoryview) else base
    if isinstance(content, mmap.mmap) and hasattr(mmap, "MADV_DONTNEED"):
        content.madvise(mmap.MADV_DONTNEED)


def _open(path: Path) -> IO[bytes]:
    try:
        return path.open("rb")
    except FileNotFoundError:
        raise ConfigError(f"{path}: no such file") from None
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror})") from None


def _hint(start: bytes) -> str:
    if start.startswith(LFS_POINTER):
        return "it is a git-lfs pointer: git lfs pull"
    return "the file is empty" if not start else ""


def _check(stream: IO[bytes], size: int, place: str) -> None:
    """Raises unless the header is of an array that is never unpickled and that a file of this size can hold."""
    version = np.lib.format.read_magic(stream)
    if version == (1, 0):
        shape, _, dtype = np.lib.format.read_array_header_1_0(stream)
    elif version == (2, 0):
        shape, _, dtype = np.lib.format.read_array_header_2_0(stream)
    else:
        raise IntegrityError(f"{place}: its format is version {version[0]}.{version[1]}, plain arrays have 1.0 or 2.0")
    if dtype.hasobject:
        raise ConfigError(f"{place} holds Python objects, which are never unpickled", "save plain number arrays")
    if dtype.kind not in KINDS:
        raise ConfigError(f"{place} holds {dtype}, which is not a number", "save plain number arrays")
    if any(isinstance(side, bool) or side < 0 for side in shape):
        raise IntegrityError(f"{place} is damaged: its shape is {list(shape)[:8]}")
    needed, there = math.prod(shape) * dtype.itemsize, size - stream.tell()
    if needed > there:
        raise IntegrityError(f"{place} is damaged: its header says {needed} bytes follow, and there are {there}")


def _native(array: Array) -> Array:
    """Returns an array in this machine's byte order."""
    return array if array.dtype.isnative else array.astype(array.dtype.newbyteorder("="))
