"""The access log: a JSON object a line, written a few times a second, never a token."""

from __future__ import annotations

import asyncio
import os
import time
from datetime import UTC, datetime
from typing import Any

import orjson

from anynpu.apps.web.message import HttpAnswer, HttpRequest

EVERY_S = 0.25
MOST_WAITING = 256 * 1024
"""Beyond these bytes lines are written at once."""


class AccessLog:
    """Lines for an open file; `close` writes those that wait."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._lines: list[bytes] = []
        self._waiting = 0
        self._timer: asyncio.TimerHandle | None = None

    def add(self, request: HttpRequest, answer: HttpAnswer, seconds: float) -> None:
        """Notes one request."""
        client = request.scope.get("client")
        entry: dict[str, Any] = {
            "time": datetime.fromtimestamp(time.time(), UTC).isoformat(timespec="milliseconds"),
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
        try:
            line = orjson.dumps(entry, option=orjson.OPT_APPEND_NEWLINE)
        except TypeError:  # half of a character in a path
            line = orjson.dumps(_plain(entry), option=orjson.OPT_APPEND_NEWLINE)
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


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(k): _plain(v) for k, v in value.items()}
    return ascii(value)[1:-1] if isinstance(value, str) else value
