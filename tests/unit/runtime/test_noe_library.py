"""Finding libnoe.so, and keeping what it prints off our stdout."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from anynpu.errors import ToolMissing
from anynpu.runtime.noe import library as libraries


@pytest.fixture
def bare(monkeypatch, tmp_path):
    """A machine without the library and without the device."""
    for name in ("ANYNPU_LIBNOE", "LD_LIBRARY_PATH", "ANYNPU_NOE_LOG"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(libraries, "VENDOR_FOLDER", tmp_path / "vendor")
    monkeypatch.setattr(libraries, "LOADER_CACHE", tmp_path / "ld.so.cache")
    monkeypatch.setattr(libraries, "DEVICE_NODE", tmp_path / "aipu")
    return tmp_path


def placed(folder):
    folder.mkdir(exist_ok=True)
    (folder / "libnoe.so").write_bytes(b"\x7fELF")
    return folder / "libnoe.so"


def test_the_places_in_their_order(bare, monkeypatch):
    assert libraries.find() is None and "libnoe.so is not installed" in libraries.missing()
    cached = placed(bare / "cached")
    (bare / "ld.so.cache").write_bytes(b"ld.so\0/gone/libnoe.so\0" + os.fsencode(cached) + b"\0/lib/libc.so.6\0")
    assert libraries.find() == cached
    searched = placed(bare / "searched")
    monkeypatch.setenv("LD_LIBRARY_PATH", f"{bare}/nothing:{bare}/searched")
    assert libraries.find() == searched
    vendor = placed(bare / "vendor")
    assert libraries.find() == vendor
    monkeypatch.setenv("ANYNPU_LIBNOE", str(placed(bare / "own")))
    assert libraries.find() == bare / "own/libnoe.so"


def test_what_is_missing_is_named(bare, monkeypatch):
    placed(bare / "vendor")
    assert "the driver is not loaded" in libraries.missing()
    (bare / "aipu").touch()
    assert libraries.missing() == ""
    monkeypatch.setattr(os, "access", lambda *_: False)
    assert "may not be opened" in libraries.missing()
    monkeypatch.setenv("ANYNPU_LIBNOE", "/no/such/file")
    assert libraries.missing() == "ANYNPU_LIBNOE names no file: /no/such/file"


def test_a_file_that_is_no_library_and_a_library_that_is_another(bare):
    with pytest.raises(ToolMissing, match="cannot be loaded"):
        libraries.Library(placed(bare / "vendor"))
    mapped = Path("/proc/self/maps").read_text("utf-8").splitlines()
    other = next(line.split()[-1] for line in mapped if "libc.so.6" in line)
    with pytest.raises(ToolMissing, match="lacks noe_add_batch and 30 others"):
        libraries.Library(other)


PROGRAM = """
import ctypes, os, sys
from anynpu.runtime.noe.library import turned_away
libc = ctypes.CDLL(None)
libc.printf(b"before ")
with turned_away():
    libc.printf(b"buffered")
    os.write(1, b"direct")
libc.printf(b"after")
libc.fflush(None)
"""


def test_what_is_printed_inside_stays_off_stdout(tmp_path):
    log = tmp_path / "log"
    env = {**os.environ, "ANYNPU_NOE_LOG": str(log), "PYTHONUNBUFFERED": ""}
    done = subprocess.run([sys.executable, "-c", PROGRAM], env=env, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "before after")
    assert log.read_text() == "directbuffered"


def test_a_closed_stdout_is_no_trouble():
    program = "import os; os.close(1)\nfrom anynpu.runtime.noe.library import turned_away\nwith turned_away(): pass\n"
    assert subprocess.run([sys.executable, "-c", program], capture_output=True).returncode == 0
