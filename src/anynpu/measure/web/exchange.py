"""One connection of the load generator: HTTP/1.1 by callbacks, with the moment of every step.

An answer is complete when its last byte is here, not when some task gets round to it; so the clock is read in the
callback that brings the bytes. Redirects are answers like others: following them would time another request.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

from anynpu.measure.timer import clock
from anynpu.measure.web.address import Address

MAX_HEAD, MAX_BODY = 64 * 1024, 256 * 1024 * 1024
STATUS = re.compile(rb"HTTP/1\.([01]) (\d{3})[ \r]")
LENGTH = re.compile(rb"\r\ncontent-length:[ \t]*(\d{1,18})[ \t]*\r\n", re.IGNORECASE)
CHUNKED = re.compile(rb"\r\ntransfer-encoding:[^\r]*chunked[ \t]*\r\n", re.IGNORECASE)
CLOSING = re.compile(rb"\r\nconnection:[^\r]*\bclose\b", re.IGNORECASE)
KEEPING = re.compile(rb"\r\nconnection:[^\r]*\bkeep-alive\b", re.IGNORECASE)
TIMED_OUT, REFUSED, CLOSED, NOT_HTTP = "timed out", "not connected", "connection closed", "not HTTP"
"""What becomes of a request without an answer; every other one has the status that the server gave it."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What came back, and when: the clock at the first and at the last byte."""

    status: int
    head: bytes
    body: bytes
    first: int
    last: int

    def header(self, name: str) -> str:
        """Returns a header of the answer, or ""."""
        match = re.search(rb"\r\n" + re.escape(name.encode()) + rb":[ \t]*([^\r\n]*)", self.head, re.IGNORECASE)
        return match[1].decode("latin-1").strip() if match else ""


class NotHttpError(ValueError):
    """The bytes that came are not an answer in HTTP/1.1."""


def request_bytes(address: Address, body: bytes, content_type: str, token: str = "", model: str = "") -> bytes:
    """Returns a whole request as it goes over the line; `model` goes into the header that anynpu serve reads."""
    lines = [f"POST {address.path or '/'} HTTP/1.1", f"Host: {address.authority}", "Accept: */*"]
    lines += ["User-Agent: anynpu-bench", f"Content-Type: {content_type}", f"Content-Length: {len(body)}"]
    lines += [f"Authorization: Bearer {token}"] if token else []
    lines += [f"X-Model: {model}"] if model.isascii() and model.isprintable() and model else []
    return "\r\n".join((*lines, "\r\n")).encode("latin-1") + body


class Parser:
    """Collects the bytes of one answer after another."""

    def __init__(self) -> None:
        self._data = bytearray()
        self._head: bytes | None = None
        self._needed: int | None = None
        self.keeps = True

    @property
    def begun(self) -> bool:
        return bool(self._data) or self._head is not None

    def feed(self, data: bytes) -> tuple[int, bytes, bytes] | None:
        """Returns status, head and body once they are whole."""
        self._data += data
        if self._head is None and not self._read_head():
            return None
        head = self._head
        assert head is not None
        if self._needed is not None:
            if len(self._data) < self._needed:
                return None
            return self._whole(bytes(self._data[: self._needed]), self._needed)
        if CHUNKED.search(head):
            joined = joined_chunks(self._data)
            return None if joined is None else self._whole(*joined)
        if len(self._data) > MAX_BODY:
            raise NotHttpError("an answer without an end")
        return None

    def end(self) -> tuple[int, bytes, bytes] | None:
        """Returns the answer that ends with the connection, where neither a length nor chunks said where it ends."""
        if self._head is None or self._needed is not None or CHUNKED.search(self._head):
            return None
        return self._whole(bytes(self._data), len(self._data))

    def _read_head(self) -> bool:
        while True:
            end = self._data.find(b"\r\n\r\n")
            if (end < 0 and len(self._data) > MAX_HEAD) or (
                len(self._data) >= 13 and STATUS.match(bytes(self._data[:16])) is None
            ):
                raise NotHttpError("not HTTP/1.1")
            if end < 0:
                return False
            head = bytes(self._data[: end + 4])
            del self._data[: end + 4]
            if head[9:10] != b"1":  # 100 Continue and its like come before the answer itself
                break
        self._head = head
        length = LENGTH.search(head)
        bodiless = head[9:12] in (b"204", b"304")
        self._needed = 0 if bodiless else int(length[1]) if length and not CHUNKED.search(head) else None
        if self._needed is not None and self._needed > MAX_BODY:
            raise NotHttpError(f"an answer of {self._needed} bytes")
        old = head[7:8] == b"0"
        self.keeps = KEEPING.search(head) is not None if old else CLOSING.search(head) is None
        return True

    def _whole(self, body: bytes, taken: int) -> tuple[int, bytes, bytes]:
        head = self._head
        assert head is not None
        del self._data[:taken]
        self._head = self._needed = None
        return int(head[9:12]), head, body


def joined_chunks(data: bytearray) -> tuple[bytes, int] | None:
    """Returns the body in chunks and how many bytes it took, or None while it is not whole."""
    parts: list[bytes] = []
    at = 0
    while True:
        line = data.find(b"\r\n", at)
        if line < 0:
            return None
        try:
            size = int(bytes(data[at:line]).partition(b";")[0].strip(), 16)
        except ValueError:
            raise NotHttpError("a chunk without a size") from None
        if size < 0 or size > MAX_BODY:
            raise NotHttpError(f"a chunk of {size} bytes")
        if size == 0:
            end = data.find(b"\r\n\r\n", line)
            if data[line + 2 : line + 4] == b"\r\n":
                end = line
            return None if end < 0 else (b"".join(parts), end + 4)
        if len(data) < line + 2 + size + 2:
            return None
        parts.append(bytes(data[line + 2 : line + 2 + size]))
        at = line + 2 + size + 2


class Exchange(asyncio.Protocol):
    """A connection with at most one request under way; `ended` gets its answer, or the word for why there is none."""

    def __init__(self, ended: Callable[[Exchange, Answer | str], None], gone: Callable[[Exchange], None]) -> None:
        self._ended, self._gone = ended, gone
        self._transport: asyncio.Transport | None = None
        self._parser = Parser()
        self.busy = False
        self.answers = 0
        self.sent = self._first = 0
        self.due = self.payload = self.tries = 0
        """When the request under way should have been sent, which one it is, how often it was sent before."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's are not subclasses of it

    @property
    def usable(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    def send(self, data: bytes) -> None:
        """Sends a whole request."""
        assert self._transport is not None
        self.busy, self._first, self.sent = True, 0, clock()
        self._transport.write(data)

    def data_received(self, data: bytes) -> None:
        now = clock()
        self._first = self._first or now
        try:
            whole = self._parser.feed(data)
        except NotHttpError:
            self.finish(NOT_HTTP)
            return
        if whole is not None and self.busy:
            self._answered(whole, now)

    def _answered(self, whole: tuple[int, bytes, bytes], now: int) -> None:
        self.busy = False
        self.answers += 1
        if not self._parser.keeps:
            self.close()
        self._ended(self, Answer(*whole, self._first, now))

    def connection_lost(self, error: Exception | None) -> None:
        self._transport = None
        if self.busy and (whole := self._parser.end()) is not None:
            self._answered(whole, clock())
        elif self.busy:
            self.busy = False
            self._ended(self, CLOSED)
        self._gone(self)

    @property
    def begun(self) -> bool:
        """Whether the first byte of the answer is here."""
        return self._parser.begun

    def finish(self, why: str) -> None:
        """Gives a request up, and the connection with it."""
        was_busy, self.busy = self.busy, False
        self.close()
        if was_busy:
            self._ended(self, why)

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort() if self.busy else self._transport.close()
