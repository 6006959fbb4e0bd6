"""The vendor's library, libnoe.so: where it is, and loading it so that what it prints stays off our output."""

from __future__ import annotations

import ctypes
import os
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any

from anynpu.errors import ToolMissing
from anynpu.runtime.noe.abi import bind

VARIABLE, LOG_VARIABLE = "ANYNPU_LIBNOE", "ANYNPU_NOE_LOG"
FILE = "libnoe.so"
VENDOR_FOLDER = Path("/usr/share/cix/lib")
LOADER_CACHE = Path("/etc/ld.so.cache")
DEVICE_NODE = Path("/dev/aipu")
LOOKED = f"{VARIABLE}, {VENDOR_FOLDER}, LD_LIBRARY_PATH and the system's library path"
HINT = "install the package cix-noe-umd, or name the file in ANYNPU_LIBNOE; `anynpu doctor` looks at the whole machine"
_REDIRECT = threading.Lock()


def find() -> Path | None:
    """Returns the library's file: the one that ANYNPU_LIBNOE names, else the vendor's, else the loader's."""
    if named := os.environ.get(VARIABLE):
        return Path(named) if Path(named).is_file() else None
    folders = [VENDOR_FOLDER, *(Path(f) for f in os.environ.get("LD_LIBRARY_PATH", "").split(":") if f)]
    for folder in folders:
        if (folder / FILE).is_file():
            return folder / FILE
    # What the loader's own list of libraries says; reading it starts no program, as asking for it would.
    try:
        listed = re.findall(rb"(/[^\0]*/libnoe\.so[.0-9]*)\0", LOADER_CACHE.read_bytes())
    except OSError:
        return None
    return next((path for path in map(Path, map(os.fsdecode, listed)) if path.is_file()), None)


def missing() -> str:
    """Returns why nothing can run on the NPU here, or an empty string; neither library nor device is touched."""
    if not hasattr(os, "memfd_create"):
        return "the NPU's library is for Linux only"
    named = os.environ.get(VARIABLE)
    if find() is None:
        return f"{VARIABLE} names no file: {named}" if named else f"{FILE} is not installed (looked in {LOOKED})"
    if named:
        return ""  # a library of the user's own choice may need no device
    if not DEVICE_NODE.exists():
        return f"there is no device {DEVICE_NODE}: the driver is not loaded (`anynpu doctor` says why)"
    return "" if os.access(DEVICE_NODE, os.R_OK | os.W_OK) else f"{DEVICE_NODE} may not be opened by this user"


def sink() -> int:
    """Returns a descriptor for what the library prints: the file that ANYNPU_NOE_LOG names, or nothing."""
    return os.open(os.environ.get(LOG_VARIABLE) or os.devnull, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)


class Library:
    """The loaded library. With `owns_output` what it prints goes where it will; else fds 1 and 2 are turned away."""

    def __init__(self, path: Path, owns_output: bool = False) -> None:
        self.path = path
        self._turn = nullcontext if owns_output else turned_away
        try:
            with self.quiet():
                self.calls: Any = ctypes.CDLL(str(path))
        except OSError as error:
            raise ToolMissing(f"{path}: cannot be loaded: {error}", HINT) from error
        if lacking := bind(self.calls):
            raise ToolMissing(f"{path}: is not {FILE}: it lacks {lacking[0]} and {len(lacking) - 1} others", HINT)

    def quiet(self) -> Any:
        """Returns a context in which the library may print."""
        return self._turn()


@contextmanager
def turned_away() -> Iterator[None]:
    """Turns fds 1 and 2 away. Calls that fail print to them, and no setting of the library prevents that."""
    with _REDIRECT:
        # What other native code has left in the buffer of C's stdout is not the library's.
        flush = ctypes.CDLL(None).fflush
        flush(None)
        saved = {}
        for descriptor in (1, 2):
            with suppress(OSError):  # the shell closed it: there is nothing to protect
                saved[descriptor] = os.dup(descriptor)
        into = sink()
        for descriptor in saved:
            os.dup2(into, descriptor)
        os.close(into)
        try:
            yield
        finally:
            flush(None)
            for descriptor, copy in saved.items():
                os.dup2(copy, descriptor)
                os.close(copy)
