"""HTTP/1.1 connections on httptools, with a bound on everything that a client may cost.

A request is admitted by its head (route, host, token, length) and handed over once its body is whole; an answer is one
piece and one write.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from types import CoroutineType
from typing import TYPE_CHECKING

import httptools

from anynpu.apps.web.addresses import UNIX
from anynpu.apps.web.message import (
    CLIENT_GONE,
    DISCARD_S,
    MOST_DISCARDED,
    Head,
    HttpAnswer,
    HttpRequest,
    Later,
    Refusal,
    Reply,
    too_large,
)
from anynpu.apps.web.turn import Turn

if TYPE_CHECKING:
    from anynpu.apps.web.connections import Site

HEAD, BODY, BUSY = "head", "body", "busy"
CLOSE = (b"connection", b"close")


@dataclass(slots=True)
class Packet:
    """An answer as bytes, and how much of it is written."""

    data: bytes
    seconds: float
    """Since the request began."""
    keeps: bool
    """The connection may be used again."""
    conclude: Callable[[], None] | None = None
    """Ends the turn of an answer that was sent early."""
    sent: int = 0
    failed: bool = False


class Connection(asyncio.Protocol):
    """One connection. `phase` is what it waits for: a head, a body, or our own answer (busy)."""

    __slots__ = (
        *("answering", "app", "begun", "blocked_since", "client", "descriptor", "dropped", "gone", "head_bytes"),
        *("headers", "held", "large", "limits", "packet", "parser", "parts", "phase", "refusal", "request", "served"),
        *("since", "site", "transport", "turn", "turns", "unfinished", "upgrade", "url", "waiting", "whole"),
    )
    transport: asyncio.Transport
    answering: HttpRequest

    def __init__(self, site: Site) -> None:
        self.site, self.app, self.limits = site, site.app, site.limits
        self.parser = httptools.HttpRequestParser(self)
        self.phase, self.since = HEAD, site.loop.time()
        self.served = self.large = self.gone = False
        self.blocked_since: float | None = None
        self.head_bytes = self.begun = self.dropped = self.held = 0
        self.refusal: Refusal | None = None
        self.headers: list[tuple[bytes, bytes]] = []
        self.parts: list[bytes] = []
        self.url = b""
        self.request: HttpRequest | None = None
        self.upgrade: HttpRequest | None = None
        """A request with a body that the parser took for the end of HTTP."""
        self.waiting: deque[HttpRequest] = deque()
        self.turn: Turn | Later | None = None
        """While a request is being answered."""
        self.packet: Packet | None = None
        """An answer that was written early."""
        self.turns: Turn | None = None
        """From the first request on."""
        self.unfinished = False
        """The parser is inside of a request."""
        self.whole: HttpRequest | None = None
        """The last request that the parser has read to its end."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self.transport = transport
        self.descriptor = transport.get_extra_info("socket").fileno()
        peer = transport.get_extra_info("peername")
        self.client = str(peer[0]) if isinstance(peer, tuple) and peer else UNIX
        site = self.site
        site.connections[self] = None
        if not site.addresses.take(self.client):
            transport.abort()
        elif len(site.connections) > self.limits.connections:
            site.make_room()

    def eof_received(self) -> None:
        self.gone = True

    def connection_lost(self, error: Exception | None) -> None:
        site = self.site
        with site.writing:
            self.gone = True
        site.connections.pop(self, None)
        site.addresses.give_back(self.client)
        if self.turns is not None:
            self.turns.close()
        self._release()
        self.waiting.clear()
        if self.phase is BODY and self.request is not None:
            self.app.note(self.request, HttpAnswer(status=CLIENT_GONE), time.perf_counter() - self.request.began)

    def pause_writing(self) -> None:
        self.blocked_since = self.site.loop.time()
        self._read_no_more()

    def resume_writing(self) -> None:
        self.blocked_since = None
        self._read_on()

    def _read_no_more(self) -> None:
        if self.transport.is_reading():
            self.transport.pause_reading()

    def _read_on(self) -> None:
        transport = self.transport
        if not (self.waiting or self.blocked_since is not None or transport.is_closing() or transport.is_reading()):
            transport.resume_reading()

    # What is read

    def data_received(self, data: bytes) -> None:
        early = self.packet
        if early is not None and early.sent and early.conclude is not None:
            early.conclude()  # the client was quicker than the news that it has its answer
        waiting, fresh = self.phase is HEAD, not (self.unfinished or self.upgrade)
        if waiting and fresh and self.turn is None and not self.waiting:
            request = self.site.heads.find(data, self)
            if request is not None and self.app.admit_again(request):
                self.phase = BUSY
                self._begin(request)
                return
        if waiting and self.served and not self.head_bytes:
            self.since = self.site.loop.time()  # the first byte of the next request ends the idle time
        self.begun = 0
        self.large = len(data) > self.limits.header_bytes or self.head_bytes > 0
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            # A client would rather speak another protocol, as HTTP/2: that is ignored; the parser stops at such a head.
            self.parser, request = httptools.HttpRequestParser(self), self.upgrade
            if request is not None:  # it has a body, which the new parser has to be told of
                framing = b"transfer-encoding" if b"transfer-encoding" in request.headers else b"content-length"
                self.parser.feed_data(b"POST / HTTP/1.1\r\n%s: %s\r\n\r\n" % (framing, request.headers[framing]))
                self.upgrade, self.request, self.phase = None, request, BODY
            if rest := data[upgrade.args[0] :]:
                self.data_received(rest)
            return
        except httptools.HttpParserError:
            self.refuse(self.refusal or Refusal(400, "this is not a valid HTTP request", "speak HTTP/1.1"))
            return
        if waiting and fresh and self.begun == 1 and not self.unfinished and self.whole is not None:
            self.site.heads.keep(data, self.whole)
        # Of several requests in one packet the last one's share is not known; the next packet is all its own.
        if self.phase is HEAD and (waiting or not self.begun) and self.begun < 2 and not self.transport.is_closing():
            self.head_bytes += len(data)
            if self.head_bytes > self.limits.header_bytes:
                self.refuse(self._headers_too_large())

    def on_message_begin(self) -> None:
        if self.upgrade is not None:
            return
        self.phase, self.unfinished = HEAD, True
        self.begun += 1
        self.headers, self.url = [], b""

    def on_url(self, url: bytes) -> None:
        self.url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        if self.phase is HEAD and self.upgrade is None:  # not what follows a body in chunks
            self.headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        if self.upgrade is not None:
            return
        limits, url, parser = self.limits, self.url, self.parser
        if len(url) > limits.url_bytes:
            self._stop(Refusal(414, f"the URL is longer than {limits.url_bytes:,} bytes"))
        size = sum([len(name) + len(value) for name, value in self.headers]) if self.large else 0
        if len(self.headers) > limits.headers or size > limits.header_bytes:
            self._stop(self._headers_too_large())
        if url[:1] != b"/" or b"#" in url:
            parsed = httptools.parse_url(url)
            path, query = parsed.path or b"/", parsed.query or b""
        else:
            path, _, query = url.partition(b"?")
        keeps = parser.should_keep_alive() and parser.get_http_version() == "1.1"
        request = HttpRequest(Head(parser.get_method().decode(), path, query, dict(self.headers), keeps), self)
        self.request = request
        request.refused = self.app.admit(request)
        self.phase, self.since, self.head_bytes, self.dropped = BODY, self.site.loop.time(), 0, 0
        if b"expect" not in request.headers:
            return
        # The client waits to hear whether it may send its body; one that is refused is answered at once.
        if request.refused is None:
            if self.turn is None:
                self.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        elif request.has_body():
            request.keeps = False
            self._hand_over(request)

    def on_body(self, body: bytes) -> None:
        request = self.request
        if request is None:
            return
        if request.refused is not None:
            # Read on for a moment: a client that only writes would not see the answer
            self.dropped += len(body)
            if self.dropped > MOST_DISCARDED:
                request.keeps = False
                self._hand_over(request)
            return
        self.parts.append(body)
        if len(self.parts) > 1 or len(body) > self.limits.header_bytes:
            self.held += len(body)
            self.site.held_bytes += len(body)
            if self.held > self.limits.body_bytes:
                request.refused = self.app.refused(too_large(self.limits.body_bytes), request)
            elif self.site.held_bytes > self.limits.bodies_bytes:
                full = Refusal(503, "too many large bodies are being received", headers=((b"retry-after", b"1"), CLOSE))
                request.refused = self.app.refused(full, request)
            if request.refused is not None:
                self._release()

    def _release(self) -> None:
        self.site.held_bytes -= self.held
        self.held = 0
        self.parts = []

    def on_message_complete(self) -> None:
        self.unfinished = False
        request = self.whole = self.request
        if request is None:
            return
        if self.parser.should_upgrade() and request.has_body():
            self.upgrade, self.request = request, None
            return
        parts = self.parts
        if parts:
            request.content = parts[0] if len(parts) == 1 else b"".join(parts)
            self._release()
        self._hand_over(request)

    def _hand_over(self, request: HttpRequest) -> None:
        self.request, self.phase = None, BUSY
        if self.begun < 2 and self.turn is None and not self.waiting:
            self._begin(request)
            return
        # A client that does not wait for answers: one in a turn of the loop, and what it sends meanwhile is not read.
        self.waiting.append(request)
        self._read_no_more()
        if self.turn is None and len(self.waiting) == 1:
            self.site.loop.call_soon(self._next)

    def _next(self) -> None:
        if self.waiting and self.turn is None:
            self._begin(self.waiting.popleft())
            self._read_on()

    def _stop(self, refusal: Refusal) -> None:
        """Ends parsing: the parser wraps what a callback raises."""
        self.refusal = refusal
        raise refusal

    def _headers_too_large(self) -> Refusal:
        bounds = f"{self.limits.headers} headers or {self.limits.header_bytes:,} bytes of them"
        return Refusal(431, f"more than {bounds} were sent")

    # What is written

    def _begin(self, request: HttpRequest) -> None:
        self.answering = request
        if request.refused is not None:
            self._write(request.refused)
            return
        try:
            reply = request.head.route.function(request)
        except Exception as error:
            self._reply(error)
            return
        if not isinstance(reply, CoroutineType):
            self.turn = reply
            reply.begin(self._reply)
            return
        if self.turns is None:
            self.turns = Turn(self._reply, self.site.loop)
        self.turn = self.turns
        self.turns.begin(reply)

    def _reply(self, reply: Reply) -> None:
        self._write(reply if isinstance(reply, HttpAnswer) else self.app.failed(reply, self.answering))

    def _write(self, answer: HttpAnswer) -> None:
        request, site, app, transport = self.answering, self.site, self.app, self.transport
        self.turn = None
        packet, self.packet = self.packet or self._packet(answer), None
        if self.phase is BUSY:
            self.phase, self.since, self.head_bytes = HEAD, site.loop.time(), 0
        self.served = True
        if not transport.is_closing():
            self._send(packet)
            if packet.failed:
                transport.abort()  # the client has gone
            elif packet.sent < len(packet.data):
                transport.write(memoryview(packet.data)[packet.sent :])
            if not packet.keeps:
                self.waiting.clear()
                transport.close()
            elif self.waiting:
                site.loop.call_soon(self._next)
        app.note(request, answer, packet.seconds)  # the client need not wait for that

    def _packet(self, answer: HttpAnswer) -> Packet:
        request, site = self.answering, self.site
        seconds = time.perf_counter() - request.began
        head = self.app.head(request, answer, seconds, site.date)
        closes = answer.headers and CLOSE in answer.headers
        keeps = not closes and request.keeps and not site.draining
        end = b"\r\n" if keeps or closes else b"connection: close\r\n\r\n"
        return Packet(head + end + answer.body if request.head.method != "HEAD" else head + end, seconds, keeps)

    def _send(self, packet: Packet) -> None:
        """Writes at once if nothing else waits to be written: the loop would only do so at the end of its turn."""
        if packet.sent or packet.failed or self.transport.get_write_buffer_size():
            return
        try:
            packet.sent = os.write(self.descriptor, packet.data)
        except BlockingIOError:
            pass
        except OSError:
            packet.failed = True

    def send_early(self, answer: HttpAnswer, conclude: Callable[[], None]) -> None:
        packet = self._packet(answer)
        packet.conclude = conclude
        self.packet = packet
        with self.site.writing:  # connection_lost waits for this; until then nobody else has the descriptor
            if not self.gone:
                self._send(packet)

    def refuse(self, refusal: Refusal) -> None:
        """Answers what never became a request, and closes the connection."""
        if self.transport.is_closing():
            return
        request = HttpRequest(Head("", b"", b"", {}, keeps=False), self)
        request.refused = self.app.refused(refusal, request)
        self._hand_over(request)

    def forgive(self, seconds: float) -> None:
        """Takes time off what the connection has waited."""
        self.since += seconds
        if self.blocked_since is not None:
            self.blocked_since += seconds

    def sweep(self, now: float) -> None:
        """Closes the connection if it is overdue."""
        if self.blocked_since is not None:
            if now - self.blocked_since > self.limits.write_s:
                self.transport.abort()
            return
        waited, limits = now - self.since, self.limits
        if self.phase is HEAD and self.turn is None:
            if waited > limits.header_s and (not self.served or self.head_bytes):
                self.refuse(Refusal(408, f"no complete request came within {limits.header_s:g} s"))
            elif waited > limits.idle_s:
                self.transport.close()
        elif self.phase is BODY and self.request is not None:
            if self.request.refused is not None and waited > DISCARD_S:
                self.request.keeps = False
                self._hand_over(self.request)
            elif waited > limits.body_s:
                self.refuse(Refusal(408, f"the body did not come within {limits.body_s:g} s"))
