"""The access log: a JSON object a line, written a few times a second, never a token."""

from __future__ import annotations

import asyncio
import functools
import logging
import os
import time
import traceback
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import orjson

from anynpu.apps.web.message import HttpAnswer, HttpRequest
from anynpu.errors import ConfigError, visible
from anynpu.schema import Json, JsonObject

EVERY_S = 0.25
APPEND = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
MOST_WAITING = 1000
"""Beyond this many lines they are written at once."""


class AccessLog:
    """Lines for an open file; `reopen` goes on in a new one after somebody has moved a log that has a path."""

    def __init__(self, descriptor: int, path: Path | None = None) -> None:
        self._descriptor, self._path = descriptor, path
        self._waiting: list[Any] = []
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
        """Notes one request; its line is made when lines are written."""
        self._waiting.append(
            (
                time.time(),
                request.id,
                request.client,
                request.method,
                request.path,
                answer.status,
                len(request.content),
                len(answer.body),
                seconds,
                answer.noted,
                answer.stages_s,
            )
        )
        self._wake()

    def write(self, entry: Mapping[str, Json]) -> None:
        """Adds one line."""
        self._waiting.append(json_line(entry))
        self._wake()

    def _wake(self) -> None:
        if len(self._waiting) > MOST_WAITING:
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
        waiting, self._waiting = self._waiting, []
        view = memoryview(b"".join([note if isinstance(note, bytes) else _line(*note) for note in waiting]))
        with suppress(OSError):
            while view:
                view = view[os.write(self._descriptor, view) :]


def _line(
    at: float,
    id: str,
    client: str,
    method: str,
    path: str,
    status: int,
    bytes_in: int,
    bytes_out: int,
    seconds: float,
    noted: Mapping[str, Json],
    stages_s: Mapping[str, float],
) -> bytes:
    """Returns the line of one request."""
    entry: JsonObject = {
        "time": _second(int(at)) + f".{int(at % 1 * 1000):03d}Z",
        "id": id,
        "client": client,
        "method": method,
        "path": path,
        "status": status,
        "bytes_in": bytes_in,
        "bytes_out": bytes_out,
        "ms": round(seconds * 1e3, 3),
        **noted,
    }
    if stages_s:
        entry["stages_ms"] = {name: round(each * 1e3, 3) for name, each in stages_s.items()}
    return json_line(entry)


@functools.lru_cache(4)
def _second(second: int) -> str:
    return datetime.fromtimestamp(second, UTC).strftime("%Y-%m-%dT%H:%M:%S")


class JsonLines(logging.Handler):
    """What the server itself has to say, as lines of the same log."""

    def __init__(self, log: AccessLog) -> None:
        super().__init__(logging.WARNING)
        self.log = log

    def emit(self, record: logging.LogRecord) -> None:
        now = time.time()
        at = f"{_second(int(now))}.{int(now % 1 * 1000):03d}Z"
        entry = {"time": at, "level": record.levelname.lower(), "message": record.getMessage()}
        if record.exc_info:
            entry["error"] = "".join(traceback.format_exception(*record.exc_info))
        self.log.write(entry)


def json_line(entry: Mapping[str, Json]) -> bytes:
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
