"""What the tests of project trees share: programs, and ways to talk to a firmware."""

from __future__ import annotations

import os
import pty
import select
import shutil
import signal
import subprocess
import time
import tty
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

PACKAGES = {
    "make": "make",
    "cc": "gcc",
    "clang": "clang",
    "g++": "g++",
    "cmake": "cmake",
    "cppcheck": "cppcheck",
    "arm-none-eabi-gcc": "gcc-arm-none-eabi",
    "arm-none-eabi-g++": "libstdc++-arm-none-eabi-newlib",
    "qemu-system-arm": "qemu-system-arm",
    "riscv64-linux-gnu-g++": "g++-riscv64-linux-gnu",
    "aarch64-linux-gnu-g++": "g++-aarch64-linux-gnu",
}


def need(*programs: str) -> None:
    """Skips the test unless the programs are installed."""
    for program in programs:
        if shutil.which(program) is None:
            pytest.skip(f"{program} is not installed: apt install {PACKAGES[program]}")


def sh(*argv: str, cwd: Path, timeout: float = 120, **more) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(argv, cwd=cwd, capture_output=True, text=True, timeout=timeout, errors="replace", **more)
    done.stdout = done.stdout.replace("\r", "")
    return done


class Line:
    """The other end of a firmware's line."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self.pending = b""

    def send(self, data: bytes) -> None:
        while data:
            data = data[os.write(self.fd, data[:256]) :]

    def until_ready(self, timeout: float = 30) -> list[str]:
        """Returns the lines up to `m-ready`."""
        lines, stop = [], time.monotonic() + timeout
        while True:
            line, end, rest = self.pending.partition(b"\n")
            if end:
                self.pending = rest
                lines.append(line.decode("ascii").rstrip("\r"))
                if lines[-1] == "m-ready":
                    return lines[:-1]
                continue
            left = stop - time.monotonic()
            assert left > 0 and select.select([self.fd], [], [], left)[0], f"no m-ready after {lines}"
            self.pending += os.read(self.fd, 65536)

    def ask(self, command: str | bytes, end: bytes = b"\n") -> list[str]:
        self.send((command.encode() if isinstance(command, str) else command) + end)
        return self.until_ready()


@contextmanager
def on_pty(argv: Sequence[str], cwd: Path) -> Iterator[Line]:
    """Runs a firmware on a pseudo terminal and gives its other end."""
    ours, theirs = pty.openpty()
    tty.setraw(theirs)
    process = subprocess.Popen(
        argv, cwd=cwd, stdin=theirs, stdout=theirs, stderr=subprocess.DEVNULL, start_new_session=True
    )
    os.close(theirs)
    try:
        yield Line(ours)
    finally:
        os.close(ours)
        os.killpg(process.pid, signal.SIGKILL)  # make's child, the emulator, too
        process.wait()
