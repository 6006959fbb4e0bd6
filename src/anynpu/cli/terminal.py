"""Where text leaves the command line: what a terminal would obey is shown, not sent.

Names of nodes, tensors, files and labels, what a device calls itself and what a vendor's tool prints are other
people's text: an escape in it could colour, move, hide or retitle what the user reads. Every stream of the command
line goes through here, so that no line of it has to think of that.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, TextIO

import click

from anynpu.errors import AnyNpuError, DeviceError, ToolFailed, Unsupported, on_one_line, visible


class Shown:
    """A stream that shows what a terminal would obey; in all else the stream it stands for."""

    encoding, errors = "utf-8", "backslashreplace"
    """It takes any text, whatever the stream behind it can write."""

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream

    def write(self, text: str) -> int:
        encoding = getattr(self.stream, "encoding", None) or "utf-8"
        plain = visible(text)
        self.stream.write(plain if plain.isascii() else plain.encode(encoding, "backslashreplace").decode(encoding))
        return len(text)

    def flush(self) -> None:
        self.stream.flush()

    def writelines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)


class Heard(Shown):
    """A stream of notes and progress: nobody has to listen, and work does not end where the reader goes away."""

    def write(self, text: str) -> int:
        with self._unheard():
            super().write(text)
        return len(text)

    def flush(self) -> None:
        with self._unheard():
            super().flush()

    @contextmanager
    def _unheard(self) -> Iterator[None]:
        try:
            yield
        except BrokenPipeError:
            drop(self.stream)


def drop(stream: TextIO) -> None:
    """Keeps Python from complaining, now and when it closes the stream, about what its reader did not take."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


@contextmanager
def shown_streams() -> Iterator[None]:
    """Lets everything that is printed inside the block be shown."""
    before = sys.stdout, sys.stderr
    sys.stdout = before[0] if isinstance(before[0], Shown) else Shown(before[0])
    sys.stderr = before[1] if isinstance(before[1], Shown) else Heard(before[1])
    try:
        yield
    finally:
        sys.stdout, sys.stderr = before


def show_error(error: AnyNpuError, where: str = "") -> None:
    """Says on stderr what went wrong: one sentence, what is known about it, and what to do next."""
    lines = [f"anynpu: {where}{error.message}"]
    if isinstance(error, Unsupported):
        lines += [f"  {finding}" for finding in error.findings]
    if isinstance(error, ToolFailed):
        lines += [f"  | {line}" for line in error.last_lines]
        lines += [f"  log: {error.log}"] if error.log else []
    if isinstance(error, DeviceError) and error.cause:
        lines.append(f"  likely cause: {error.cause}")
    if error.hint:
        lines.append(f"hint: {error.hint}")
    for line in lines:
        click.echo(on_one_line(line), err=True)


def drawn_on(stream: TextIO) -> TextIO:
    """Returns the stream itself, for what draws with escapes of its own and shows names by `visible`."""
    return stream.stream if isinstance(stream, Shown) else stream
