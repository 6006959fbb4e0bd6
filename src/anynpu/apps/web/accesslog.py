"""The access log: a JSON object a line, written a few times a second, never a token."""

from __future__ import annotations

import asyncio
import logging
import os
import time
import traceback
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import orjson

from anynpu.apps.web.message import HttpAnswer, HttpRequest
from anynpu.errors import ConfigError, visible

EVERY_S = 0.25
APPEND = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
MOST_WAITING = 256 * 1024
"""Beyond these bytes lines are written at once."""


class AccessLog:
    """Lines for an open file; `reopen` goes on in a new one after somebody has moved a log that has a path."""

    def __init__(self, descriptor: int, path: Path | None = None) -> None:
        self._descriptor, self._path = descriptor, path
        self._lines: list[bytes] = []
        self._waiting = 0
        self._timer: asyncio.TimerHandle | None = None

    @classmethod
    def at(cls, path: Path) -> AccessLog:
        """Returns a log that adds to a file, readable for its owner and group."""
        try:
            return cls(os.open(path, APPEND, 0o640), path)
        except OSError as error:
            raise ConfigError(f"--access-log {path}: {error.strerror}", "name a file that can be written") from None

    def reopen(self) -> None:
        """Opens the file again by its name."""
        self.flush()
        if self._path is not None:
            with suppress(OSError):
                fresh = os.open(self._path, APPEND, 0o640)
                os.dup2(fresh, self._descriptor)
                os.close(fresh)

    def add(self, request: HttpRequest, answer: HttpAnswer, seconds: float) -> None:
        """Notes one request."""
        client = request.scope.get("client")
        entry: dict[str, Any] = {
            "time": _now(),
            "id": request.id,
            "client": client[0] if client else "unix",
            "method": request.method,
            "path": request.path,
            "status": answer.status,
            "bytes_in": request.body_bytes,
            "bytes_out": len(answer.body),
            "ms": round(seconds * 1e3, 3),
            **answer.noted,
        }
        if answer.stages_ms:
            entry["stages_ms"] = {name: round(ms, 3) for name, ms in answer.stages_ms.items()}
        self.write(entry)

    def write(self, entry: dict[str, Any]) -> None:
        """Adds one line."""
        line = json_line(entry)
        self._lines.append(line)
        self._waiting += len(line)
        if self._waiting > MOST_WAITING:
            self.flush()
        elif self._timer is None:
            try:
                self._timer = asyncio.get_running_loop().call_later(EVERY_S, self.flush)
            except RuntimeError:  # no loop: at the end of the server's life
                self.flush()

    def flush(self) -> None:
        """Writes what waits; a full disk or a reader that is gone loses lines, not requests."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if not self._lines:
            return
        data, self._lines, self._waiting = b"".join(self._lines), [], 0
        try:
            view = memoryview(data)
            while view:
                view = view[os.write(self._descriptor, view) :]
        except OSError:
            return


class JsonLines(logging.Handler):
    """What the server itself has to say, as lines of the same log."""

    def __init__(self, log: AccessLog) -> None:
        super().__init__(logging.WARNING)
        self.log = log

    def emit(self, record: logging.LogRecord) -> None:
        entry = {"time": _now(), "level": record.levelname.lower(), "message": record.getMessage()}
        if record.exc_info:
            entry["error"] = "".join(traceback.format_exception(*record.exc_info))
        self.log.write(entry)


def json_line(entry: dict[str, Any]) -> bytes:
    """Returns a line in which no character steers the terminal that shows it."""
    try:
        line = orjson.dumps(entry, option=orjson.OPT_APPEND_NEWLINE)
        if line.isascii() and b"\x7f" not in line:
            return line
    except TypeError:  # half of a character
        pass
    return orjson.dumps(_visible(entry), option=orjson.OPT_APPEND_NEWLINE)


def _visible(value: Any) -> Any:
    if isinstance(value, dict):
        return {_visible(str(k)): _visible(v) for k, v in value.items()}
    return visible(value) if isinstance(value, str) else value


def _now() -> str:
    return datetime.fromtimestamp(time.time(), UTC).isoformat(timespec="milliseconds")
