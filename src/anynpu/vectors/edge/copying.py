"""Copies a shard's folder; holes in its logs, which the engine makes 64 MiB large, stay holes."""

from __future__ import annotations

import errno
import os
from pathlib import Path


def copy_folder(source: Path, destination: Path) -> None:
    """Copies a folder with all below it."""
    destination.mkdir()
    for entry in source.iterdir():
        if entry.is_dir():
            copy_folder(entry, destination / entry.name)
        else:
            copy_file(entry, destination / entry.name)


def copy_file(source: Path, destination: Path) -> None:
    """Copies a file, its data only where there is some."""
    reading = os.open(source, os.O_RDONLY)
    try:
        size = os.fstat(reading).st_size
        writing = os.open(destination, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            os.ftruncate(writing, size)
            at = _seek(reading, 0, os.SEEK_DATA, size)
            while at < size:
                end = _seek(reading, at, os.SEEK_HOLE, size)
                os.lseek(writing, at, os.SEEK_SET)
                while at < end:
                    sent = os.sendfile(writing, reading, at, min(end - at, 1 << 24))
                    if not sent:  # it has become shorter
                        return
                    at += sent
                at = _seek(reading, end, os.SEEK_DATA, size)
        finally:
            os.close(writing)
    finally:
        os.close(reading)


def _seek(handle: int, at: int, how: int, size: int) -> int:
    try:
        return os.lseek(handle, at, how) if at < size else size
    except OSError as error:
        if error.errno == errno.ENXIO:  # no more data
            return size
        raise
