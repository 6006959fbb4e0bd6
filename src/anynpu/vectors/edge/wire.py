"""What goes over the socket between a client and the store's process: frames of JSON and vectors.

<u32 bytes of JSON> <u32 bytes of vectors> JSON vectors        little endian; vectors are float32
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from anynpu.errors import IntegrityError
from anynpu.tensors import Array
from anynpu.vectors.base import AnyOf, Condition, Filter, HasId, Match, PointId, Range

PROTOCOL = 1
HEAD = struct.Struct("<II")
MOST_BYTES = 256 << 20
"""The largest frame that is taken: about 100,000 vectors of 384 numbers."""
NO_VECTORS = np.zeros(0, np.float32)
KINDS: dict[str, Callable[..., Condition]] = {
    "match": Match,
    "any": AnyOf,
    "range": Range,
    "id": HasId,
}
NAMES = {kind: name for name, kind in KINDS.items()}


@dataclass(frozen=True)
class Frame:
    """One request or one answer."""

    head: dict[str, Any]
    vectors: Array = field(default_factory=lambda: NO_VECTORS)

    def rows(self, width: int) -> Array:
        return self.vectors.reshape(-1, width)


def encode(frame: Frame) -> bytes:
    """Returns a frame as it goes over the socket."""
    import orjson

    text = orjson.dumps(frame.head)
    data = np.ascontiguousarray(frame.vectors, "<f4").tobytes()
    if len(text) + len(data) > MOST_BYTES:
        raise IntegrityError(f"{len(text) + len(data):,} bytes are more than a store takes at once")
    return HEAD.pack(len(text), len(data)) + text + data


def size_of(start: bytes | bytearray) -> int:
    """Returns the bytes of the whole frame that begins like this, or 0 where that is not known yet."""
    if len(start) < HEAD.size:
        return 0
    text, data = HEAD.unpack_from(start)
    if text + data > MOST_BYTES or data % 4:
        raise IntegrityError("what came over the socket is not a frame")
    return int(HEAD.size + text + data)


def decode(whole: bytes | bytearray | memoryview) -> Frame:
    """Returns the frame in its bytes."""
    import orjson

    text, _ = HEAD.unpack_from(whole)
    try:
        head = orjson.loads(memoryview(whole)[HEAD.size : HEAD.size + text])
    except orjson.JSONDecodeError:
        raise IntegrityError("what came over the socket is not a frame") from None
    if not isinstance(head, dict):
        raise IntegrityError("what came over the socket is not a frame")
    return Frame(head, np.frombuffer(whole, "<f4", offset=HEAD.size + text))


def receive(connection: socket.socket) -> Frame:
    """Returns the next frame; EOFError if the other side has gone."""
    start = _exactly(connection, HEAD.size)
    return decode(start + _exactly(connection, size_of(start) - HEAD.size))


def _exactly(connection: socket.socket, size: int) -> bytes:
    first = connection.recv(size) if size else b""
    if len(first) == size:
        return first
    if not first:
        raise EOFError
    parts = bytearray(first)
    while len(parts) < size:
        more = connection.recv(min(size - len(parts), 1 << 20))
        if not more:
            raise EOFError
        parts += more
    return bytes(parts)


def plain_filter(where: Filter | None) -> dict[str, Any] | None:
    """Returns a filter as JSON."""
    if where is None:
        return None
    return {
        part: [{"is": NAMES[type(condition)], **vars(condition)} for condition in getattr(where, part)]
        for part in ("must", "should", "must_not")
    }


def read_filter(data: dict[str, Any] | None) -> Filter | None:
    """Returns the filter that `plain_filter` wrote."""
    if data is None:
        return None
    return Filter(**{part: tuple(_condition(dict(each)) for each in listed) for part, listed in data.items()})


def _condition(data: dict[str, Any]) -> Condition:
    kind = KINDS[data.pop("is")]
    return kind(**{key: tuple(value) if isinstance(value, list) else value for key, value in data.items()})


def id_order(id: PointId) -> tuple[int, int | str]:
    """Returns the key that sorts ids as Qdrant does: numbers first, then UUIDs."""
    return (0, id) if isinstance(id, int) else (1, id)


def stacked(rows: Sequence[Array | None]) -> Array:
    """Returns vectors as one array to send."""
    present = [row for row in rows if row is not None]
    return np.concatenate(present).astype(np.float32) if present else NO_VECTORS
