"""A board on a serial port, through pyserial."""

from __future__ import annotations

import importlib
import os
from typing import Any

from anynpu.errors import ConfigError, DeviceError, ToolMissing
from anynpu.runtime.device.transport import Lines

BAUD = 115200
# Set once: pyserial configures the whole port again when either changes.
TICK_S, WRITE_S = 0.05, 5.0


def parse_port(text: str) -> tuple[str, int]:
    """Returns port and baud rate of "PORT[@BAUD]"."""
    port, sign, baud = text.rpartition("@")
    if not sign:
        port, baud = text, str(BAUD)
    if not port or not baud.isdecimal() or int(baud) == 0:
        raise ConfigError(f"serial:{text}: a port was expected", "such as serial:/dev/ttyACM0 or serial:COM3@921600")
    return port, int(baud)


class SerialPort:
    """The line of "serial:PORT[@BAUD]"."""

    def __init__(self, text: str) -> None:
        port, baud = parse_port(text)
        self.where = f"serial port {port} at {baud} baud"
        self.speed = baud / 10  # a start bit, eight of data, a stop bit
        self._port = _open(port, baud)
        self._lines = Lines(self.where, self._receive)

    def write(self, data: bytes, deadline: float) -> None:
        try:
            self._port.write(data)
        except OSError as error:  # pyserial's own errors are OSErrors
            raise DeviceError(
                f"{self.where}: nothing can be sent ({error})", call="write", cause="the board was unplugged or hangs"
            ) from error

    def _receive(self, seconds: float) -> bytes:
        try:
            data: bytes = self._port.read(max(1, self._port.in_waiting))
        except OSError as error:
            cause = "the board was unplugged, or another program reads the same port"
            raise DeviceError(f"{self.where}: the line broke ({error})", call="read", cause=cause) from error
        return data

    def read_line(self, deadline: float) -> bytes:
        return self._lines.next(deadline)

    def close(self) -> None:
        self._port.close()


def _open(port: str, baud: int) -> Any:
    try:
        serial = importlib.import_module("serial")
    except ImportError:
        raise ToolMissing("pyserial is not installed", "pip install 'anynpu[device]'") from None
    try:
        return serial.Serial(port, baud, timeout=TICK_S, write_timeout=WRITE_S)
    except (OSError, ValueError) as error:
        number = getattr(error, "errno", None)
        ports = [str(port.device) for port in importlib.import_module("serial.tools.list_ports").comports()]
        raise DeviceError(
            f"serial port {port} cannot be opened ({os.strerror(number) if number else error})",
            code=number,
            call="open",
            cause="no board on that port, the port is in use, or you may not use it (group dialout)",
            hint="ports here: " + ", ".join(ports) if ports else "no serial port is here",
        ) from error
