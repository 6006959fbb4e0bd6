"""Heads of requests that were parsed before: clients repeat theirs to the byte on every request.

Only what came as one packet with its whole body is kept, and only heads that were admitted. The same bytes mean the
same method, path and headers, and the same route; the token is compared again every time.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from anynpu.apps.web.message import HttpRequest

END = b"\r\n\r\n"
MOST_HEADS, MOST_BYTES = 128, 1024
NOT_KEPT = frozenset((b"x-request-id", b"transfer-encoding", b"expect", b"upgrade"))
"""Headers whose value is new every time, or that change how the rest is read."""


@dataclass(frozen=True, slots=True)
class Head:
    """What a head said, and how long the body behind it is."""

    length: int
    method: str
    raw_path: bytes
    query_string: bytes
    headers: dict[bytes, bytes]
    keeps: bool
    path: str
    parameters: dict[str, str]
    route: Any


class Heads:
    """The heads that the clients of one server send, by their bytes."""

    def __init__(self) -> None:
        self._known: dict[bytes, Head] = {}

    def find(self, data: bytes) -> tuple[Head, bytes] | None:
        """Returns the head of a packet that is one whole request with a head that is known, and its body."""
        end = data.find(END) + 4
        head = self._known.get(data[:end])
        if head is None or len(data) - end != head.length:
            return None
        return head, data[end:]

    def keep(self, data: bytes, request: HttpRequest) -> None:
        """Keeps the head of a packet that was one whole request."""
        end = data.find(END) + 4
        if end > MOST_BYTES or request.refused is not None or not NOT_KEPT.isdisjoint(request.headers):
            return
        if len(data) - end != len(request.content):
            return
        if len(self._known) >= MOST_HEADS:
            self._known.clear()
        self._known[data[:end]] = Head(
            len(request.content),
            request.method,
            request.raw_path,
            request.query_string,
            request.headers,
            request.keeps,
            request.path,
            request.parameters,
            request.route,
        )
