"""Connections that cost too much: too many headers, too slow, too many, or that never take their answer.

uvicorn's httptools protocol has no bound on headers and no time limit before the first request; both are added here.
One sweep a second looks at all connections, so that a good request pays next to nothing for it.
"""

from __future__ import annotations

import asyncio
import contextlib
import heapq
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import uvicorn
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from anynpu.apps.web.app import WRITE_ANSWER
from anynpu.apps.web.limits import Limits
from anynpu.apps.web.message import JSON, Refusal, error_body

if TYPE_CHECKING:
    from uvicorn.config import Config
    from uvicorn.server import ServerState

SWEEP_S = 1.0
HEAD, BODY, BUSY = "head", "body", "busy"
IDLE = Refusal(408, "no other request came")
"""Between two requests: the connection is closed without a word."""


class BoundedProtocol(HttpToolsProtocol):
    """One connection. `phase` is what it is waited for: headers, a body, or our own answer (busy)."""

    limits = Limits()

    def __init__(self, config: Config, server_state: ServerState, app_state: dict[str, Any], _loop: Any = None) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self.phase, self.since = HEAD, self.loop.time()
        self.served = self.large = False
        self.blocked_since: float | None = None
        self.head_bytes = self.begun = 0
        self.refusal: Refusal | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > self.limits.connections:
            make_room(self.connections, self.limits.connections)

    def data_received(self, data: bytes) -> None:
        waiting = self.phase is HEAD
        if waiting and self.served and not self.head_bytes:
            self.since = self.loop.time()  # the first byte of the next request ends the idle time
        self.begun = 0
        self.large = len(data) > self.limits.header_bytes or self.head_bytes > 0
        super().data_received(data)
        # Of several requests in one packet the last one's share is not known; the next packet is all its own.
        if self.phase is HEAD and (waiting or not self.begun) and self.begun < 2 and not self.transport.is_closing():
            self.head_bytes += len(data)
            if self.head_bytes > self.limits.header_bytes:
                self.refuse(self._headers_too_large())

    def on_message_begin(self) -> None:
        self.phase = HEAD
        self.begun += 1
        super().on_message_begin()
        self.scope["extensions"] = EXTENSIONS

    def on_headers_complete(self) -> None:
        limits = self.limits
        if len(self.url) > limits.url_bytes:
            self._stop(Refusal(414, f"the URL is longer than {limits.url_bytes:,} bytes"))
        size = sum([len(name) + len(value) for name, value in self.headers]) if self.large else 0
        if len(self.headers) > limits.headers or size > limits.header_bytes:
            self._stop(self._headers_too_large())
        self.phase, self.since, self.head_bytes = BODY, self.loop.time(), 0
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        self.phase = BUSY
        super().on_message_complete()

    def on_response_complete(self) -> None:
        self.served = True
        if self.phase is BUSY:
            self.phase, self.since, self.head_bytes = HEAD, self.loop.time(), 0
        if self.pipeline or self.flow.read_paused:
            super().on_response_complete()
        else:  # the sweep ends idle connections: no timer has to be set and cancelled for every answer
            self.server_state.total_requests += 1

    def pause_writing(self) -> None:
        self.blocked_since = self.loop.time()
        super().pause_writing()

    def resume_writing(self) -> None:
        self.blocked_since = None
        super().resume_writing()

    def is_open(self) -> bool:
        return self.transport is not None and not self.transport.is_closing()

    def _headers_too_large(self) -> Refusal:
        bounds = f"{self.limits.headers} headers or {self.limits.header_bytes:,} bytes of them"
        return Refusal(431, f"more than {bounds} were sent")

    def _stop(self, refusal: Refusal) -> None:
        """Ends parsing; the parser wraps what a callback raises, and uvicorn answers through `send_400_response`."""
        self.refusal = refusal
        raise refusal

    def send_400_response(self, msg: str) -> None:
        refusal = self.refusal or Refusal(400, "this is not a valid HTTP request", "speak HTTP/1.1")
        self.refuse(refusal)

    def refuse(self, refusal: Refusal) -> None:
        """Answers what never became a request, and closes the connection."""
        if self.transport.is_closing():
            return
        if self.cycle is None or self.cycle.response_complete or not self.cycle.response_started:
            body = error_body(refusal, "plain", "")
            head = b"content-type: %s\r\ncontent-length: %d\r\nconnection: close\r\n\r\n" % (JSON, len(body))
            self.transport.write(STATUS_LINE[refusal.status] + head + body)
        self.transport.close()

    def overdue(self, now: float) -> Refusal | None:
        """Returns why the connection has waited too long, if it has."""
        if self.phase is HEAD and now - self.since > self.limits.header_s and (not self.served or self.head_bytes):
            return Refusal(408, f"no complete request came within {self.limits.header_s:g} s")
        if self.phase is HEAD and now - self.since > self.limits.idle_s:
            return IDLE
        if self.phase is BODY and now - self.since > self.limits.body_s:
            return Refusal(408, f"the body did not come within {self.limits.body_s:g} s")
        return None


def write_answer(cycle: RequestResponseCycle, status: int, head: bytes, body: bytes) -> bool:
    """Writes an answer of one piece at once and returns True, or False where uvicorn's own way is needed.

    uvicorn looks at every header with two patterns, at 1 us each; the application has checked these as a whole.
    """
    transport = cycle.transport
    if cycle.response_started or cycle.flow.write_paused or cycle.disconnected or cycle.scope["method"] == "HEAD":
        return False
    cycle.waiting_for_100_continue = False
    cycle.response_started = cycle.response_complete = True
    end = b"\r\n" if cycle.keep_alive else b"connection: close\r\n\r\n"
    transport.write(b"".join((STATUS_LINE[status], _defaults(cycle), head, end, body)))
    cycle.message_event.set()
    if not cycle.keep_alive:
        transport.close()
    cycle.on_response()
    return True


def _defaults(cycle: RequestResponseCycle) -> bytes:
    """Returns the headers of every answer, of which uvicorn makes new ones once a second (the date)."""
    global _last
    if _last[0] is not cycle.default_headers:
        _last = (cycle.default_headers, b"".join([b"%s: %s\r\n" % header for header in cycle.default_headers]))
    return _last[1]


_last: tuple[list[tuple[bytes, bytes]], bytes] = ([], b"")
EXTENSIONS: dict[str, Any] = {WRITE_ANSWER: write_answer}


def bounded(limits: Limits) -> type[BoundedProtocol]:
    """Returns the protocol with these limits."""
    return type("Bounded", (BoundedProtocol,), {"limits": limits})


def make_room(connections: Iterable[Any], most: int) -> None:
    """Closes the connections that have waited longest for a request, one in a hundred at a time."""
    idle = [c for c in connections if isinstance(c, BoundedProtocol) and c.phase is HEAD and c.is_open()]
    for connection in heapq.nsmallest(max(1, most // 100), idle, key=lambda c: c.since):
        connection.transport.abort()


def sweep(connections: Iterable[Any], now: float) -> int:
    """Closes what is overdue and returns how many connections that were."""
    closed = 0
    for connection in list(connections):
        if not isinstance(connection, BoundedProtocol) or connection.transport is None:
            continue
        blocked = connection.blocked_since
        if blocked is not None and now - blocked > connection.limits.write_s:
            connection.transport.abort()
        elif (refusal := connection.overdue(now)) is IDLE:
            connection.transport.close()
        elif refusal is not None:
            connection.refuse(refusal)
        else:
            continue
        closed += 1
    return closed


class Server(uvicorn.Server):
    """uvicorn's server without signal handlers of its own."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield
