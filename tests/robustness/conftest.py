"""Disks that are full or read-only, and processes to look for."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

Mount = Callable[..., Path]


@pytest.fixture
def mount(tmp_path: Path) -> Iterator[Mount]:
    """Mounts a small disk of its own and takes it away at the end."""
    made: list[Path] = []

    def call(name: str, options: str) -> Path:
        place = tmp_path / name
        place.mkdir(exist_ok=True)
        command = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(place)]
        if os.name != "posix" or os.geteuid() != 0 or subprocess.run(command, capture_output=True).returncode:
            pytest.skip("only root may mount a small disk, which this test needs")
        made.append(place)
        return place

    yield call
    for place in reversed(made):
        subprocess.run(["umount", "-l", str(place)], check=True)


def processes_about(text: str) -> list[str]:
    """Returns the command lines of other processes in which `text` occurs."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            line = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if text in line and int(folder.name) != os.getpid():
            found.append(line)
    return found


@pytest.fixture
def nothing_runs() -> Callable[[Path], None]:
    """Fails unless every process whose command line names a folder ends soon."""

    def check(folder: Path, patience_s: float = 10) -> None:
        deadline = time.monotonic() + patience_s
        while processes_about(str(folder)) and time.monotonic() < deadline:
            time.sleep(0.05)
        assert not processes_about(str(folder))

    return check
