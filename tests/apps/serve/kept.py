"""An HTTP client whose connections are kept as long as the server keeps them, and that says exactly how one ended.

Pools of public clients close connections of their own accord, some while a request is on its way to one (httpcore 1.0
does beyond `max_keepalive_connections`): what they report as a read error need not be the server's doing.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

IDLE_S = 60.0
"""The server keeps an idle connection for 75 s."""


class Broken(Exception):
    """A connection ended before the answer to a request was whole."""


@dataclass(frozen=True)
class Reply:
    status: int
    headers: Mapping[str, str]
    content: bytes

    def json(self) -> Any:
        return json.loads(self.content)


@dataclass
class Line:
    """One connection, and how many requests it has carried."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    requests: int = 0
    used_at: float = 0.0


class Kept:
    """Asks one server; each request has a connection to itself, the one that was used last if it is free."""

    def __init__(self, port: int) -> None:
        self.port = port
        self._free: list[Line] = []

    def _kept(self) -> Line | None:
        """Returns a free connection that the server need not have given up as idle."""
        while self._free:
            line = self._free.pop()
            if time.monotonic() - line.used_at < IDLE_S and not line.reader.at_eof():
                return line
            line.writer.close()
        return None

    async def ask(self, method: str, path: str, body: bytes = b"", **headers: str) -> Reply:
        line = self._kept() or Line(*await asyncio.open_connection("127.0.0.1", self.port))
        line.requests += 1
        named = {"host": "127.0.0.1", "content-length": str(len(body)), **headers}
        head = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in named.items())
        try:
            line.writer.write(f"{method} {path} HTTP/1.1\r\n{head}\r\n".encode() + body)
            reply = await self._read(line)
        except (OSError, asyncio.IncompleteReadError) as error:
            line.writer.close()
            raise Broken(f"{method} {path}, request {line.requests} of its connection: {error!r}") from error
        if reply.headers.get("connection") == "close":
            line.writer.close()
        else:
            line.used_at = time.monotonic()
            self._free.append(line)
        return reply

    @staticmethod
    async def _read(line: Line) -> Reply:
        head = (await line.reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        first, *rest = head.split("\r\n")
        headers = {name.lower(): value for name, _, value in (field.partition(": ") for field in rest if field)}
        content = await line.reader.readexactly(int(headers.get("content-length", 0)))
        return Reply(int(first.split()[1]), headers, content)

    def close(self) -> None:
        for line in self._free:
            line.writer.close()
        self._free.clear()
