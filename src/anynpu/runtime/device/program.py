"""A board that is a program here: a host build of the firmware on a pty, or an emulator with its UART on a pty."""

from __future__ import annotations

import os
import select
import tempfile
import time
import weakref
from collections.abc import Sequence
from pathlib import Path

from anynpu import tool
from anynpu.errors import DeviceError, ToolMissing
from anynpu.runtime.device.transport import Lines

SPEED = 100_000.0
"""Characters a second that even an emulator on a busy machine manages."""


class Program:
    """The line to a program that talks over a terminal of its own; closing it ends the program and all it started."""

    def __init__(self, argv: Sequence[str], cwd: Path, where: str, hint: str = "") -> None:
        if os.name != "posix":
            raise ToolMissing(f"{where}: needs a pseudo-terminal, which this system does not have", "use Linux or WSL")
        self.where = where
        self.speed = SPEED
        self._said = tempfile.TemporaryFile()  # noqa: SIM115  # what it says on stderr; closed with the line
        self._terminal, inner = raw_terminal()
        os.set_blocking(self._terminal, False)
        try:
            self._process = tool.interactive(argv, cwd=cwd, terminal=inner, stderr=self._said.fileno(), hint=hint)
        except BaseException:
            os.close(self._terminal)
            self._said.close()
            raise
        finally:
            os.close(inner)
        self._ended = weakref.finalize(self, tool.end, self._process)
        self._lines = Lines(where, self._receive)

    def write(self, data: bytes, deadline: float) -> None:
        while data:
            remaining_s = deadline - time.monotonic()
            if remaining_s <= 0 or not select.select([], [self._terminal], [], remaining_s)[1]:
                raise DeviceError(f"{self.where}: it takes no more input", call="write", cause="the firmware hangs")
            try:
                data = data[os.write(self._terminal, data) :]
            except BlockingIOError:
                continue
            except OSError:
                raise self._gone("write") from None

    def _receive(self, seconds: float) -> bytes:
        if not select.select([self._terminal], [], [], seconds)[0]:
            return b""
        try:
            data = os.read(self._terminal, 1 << 16)
        except BlockingIOError:
            return b""
        except OSError:  # Linux reports the end of a pty as an input/output error
            data = b""
        if not data:
            raise self._gone("read")
        return data

    def _gone(self, call: str) -> DeviceError:
        until = time.monotonic() + 1
        while (status := self._process.poll()) is None and time.monotonic() < until:
            time.sleep(0.01)  # the line ends a moment before the program does
        self._said.seek(0)
        last = self._said.read().decode("utf-8", "replace").strip().splitlines()[-1:]
        how = "" if status is None else f" with status {status}"
        return DeviceError(
            f"{self.where}: the program ended{how}" + "".join(f" ({line})" for line in last),
            call=call,
            code=status,
            cause="the firmware crashed or left its command loop",
        )

    def read_line(self, deadline: float) -> bytes:
        return self._lines.next(deadline)

    def close(self) -> None:
        if self._ended.alive:
            self._ended()
            os.close(self._terminal)
            self._said.close()


def raw_terminal() -> tuple[int, int]:
    """Returns both ends of a pty that passes bytes on as they are: no echo, no line editing, no limit of a line."""
    import pty
    import tty

    outer, inner = pty.openpty()
    tty.setraw(inner)
    return outer, inner
