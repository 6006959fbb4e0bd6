"""A line to a board: bytes go out, lines come in, and every wait ends at a deadline."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol

from anynpu.errors import DeviceError

LINE_LIMIT = 16 << 20
"""No answer is longer; more without an end of line is noise."""


class SilentLine(DeviceError):
    """The deadline came before a whole line did; `heard` is what did come."""

    def __init__(self, message: str, heard: bytes = b"", cause: str = "") -> None:
        super().__init__(message, call="read", cause=cause)
        self.heard = heard


class Transport(Protocol):
    """A line to a board."""

    where: str
    """The line as the user knows it: "serial port /dev/ttyACM0 at 115200 baud"."""
    speed: float
    """Characters a second: a long answer takes its time."""

    def write(self, data: bytes, deadline: float) -> None:
        """Sends all of `data`, or raises DeviceError at the deadline (a time of time.monotonic)."""
        ...

    def read_line(self, deadline: float) -> bytes:
        """Returns the next line without its end, or raises SilentLine at the deadline."""
        ...

    def close(self) -> None:
        """Gives the line back; a program on it is ended."""
        ...


class Lines:
    """Cuts what arrives into lines."""

    def __init__(self, where: str, receive: Callable[[float], bytes]) -> None:
        self._where = where
        self._receive = receive
        self._buffer = bytearray()
        self._searched = 0

    def next(self, deadline: float) -> bytes:
        """Returns the next line; `receive` gives what has arrived within this many seconds, if anything."""
        while (end := self._buffer.find(b"\n", self._searched)) < 0:
            self._searched = len(self._buffer)
            if self._searched > LINE_LIMIT:
                raise DeviceError(
                    f"{self._where}: {self._searched} bytes came without an end of line", call="read", cause=NOISE
                )
            remaining_s = deadline - time.monotonic()
            if remaining_s <= 0:
                raise SilentLine(f"{self._where}: no whole line came in time", bytes(self._buffer))
            self._buffer += self._receive(remaining_s)
        line = bytes(self._buffer[:end])
        del self._buffer[: end + 1]
        self._searched = 0
        return line.rstrip(b"\r")


NOISE = "another baud rate than the firmware's, other firmware, or a second program on the same port"
