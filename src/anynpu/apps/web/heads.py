"""Heads of requests that were parsed before: clients repeat theirs to the byte on every request.

Only what came as one packet with its whole body is kept, and only heads that were admitted. The same bytes mean the
same method, path and headers, and the same route; the token is compared again every time.
"""

from __future__ import annotations

from anynpu.apps.web.message import Head, HttpRequest, Line

END = b"\r\n\r\n"
MOST_HEADS, MOST_BYTES = 128, 1024
NOT_KEPT = frozenset((b"x-request-id", b"transfer-encoding", b"expect", b"upgrade"))
"""Headers whose value is new every time, or that change how the rest is read."""


class Heads:
    """The heads that the clients of one server send, by their bytes."""

    def __init__(self) -> None:
        self._known: dict[bytes, Head] = {}

    def find(self, data: bytes, line: Line) -> HttpRequest | None:
        """Returns the request of a packet that is one whole request with a head that is known."""
        end = data.find(END) + 4
        head = self._known.get(data[:end])
        if head is None or len(data) - end != head.length:
            return None
        return HttpRequest(head, line, data[end:])

    def keep(self, data: bytes, request: HttpRequest) -> None:
        """Keeps the head of a packet that was one whole request."""
        end = data.find(END) + 4
        if end > MOST_BYTES or request.refused is not None or not NOT_KEPT.isdisjoint(request.headers):
            return
        if len(data) - end != len(request.content):
            return
        if len(self._known) >= MOST_HEADS:
            self._known.clear()
        request.head.length = len(request.content)
        self._known[data[:end]] = request.head
