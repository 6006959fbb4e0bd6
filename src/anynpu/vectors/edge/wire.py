"""What goes over the socket between a client and the store's process: frames of JSON and vectors.

<u32 bytes of JSON> <u32 bytes of vectors> JSON vectors        little endian; vectors are float32
"""

from __future__ import annotations

import os
import socket
import struct
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from anynpu.errors import AnyNpuError, IntegrityError
from anynpu.schema import JsonObject
from anynpu.tensors import Array
from anynpu.vectors.base import AnyOf, Condition, Filter, HasId, Match, PointId, Range, Row

PROTOCOL = 1
HEAD = struct.Struct("<II")
MOST_BYTES = 256 << 20
"""The largest frame that is taken: about 100,000 vectors of 384 numbers."""
CHUNK = 1 << 16
SPIN_S = 0.001 if len(os.sched_getaffinity(0)) > 1 else 0.0
"""Whoever waits looks again and again for this long before it sleeps, where the other side was as quick the last time.
A core that has slept takes a tenth of a millisecond to wake up, and the next query takes twice as long on it. Between
two looks it lets others run: the kernel may have put the other side, or a client that writes, on the same core."""
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


def receive(connection: socket.socket, spin_s: float = 0.0) -> Frame:
    """Returns the next frame, the only one that is on its way; EOFError if the other side has gone."""
    first = b""
    until = time.perf_counter() + spin_s if spin_s else 0.0
    while until and not first and time.perf_counter() < until:
        try:
            first = _some(connection, CHUNK, socket.MSG_DONTWAIT)
        except BlockingIOError:
            os.sched_yield()
    parts = bytearray(first or _some(connection, CHUNK))
    while not (size := size_of(parts)) or len(parts) < size:
        parts += _some(connection, size - len(parts))
    return decode(bytes(parts))


def _some(connection: socket.socket, wanted: int, how: int = 0) -> bytes:
    more = connection.recv(min(max(wanted, CHUNK), 1 << 20), how)
    if not more:
        raise EOFError
    return more


def plain_filter(where: Filter | None) -> dict[str, list[JsonObject]] | None:
    """Returns a filter as JSON."""
    if where is None:
        return None
    return {
        part: [{"is": NAMES[type(condition)], **vars(condition)} for condition in getattr(where, part)]
        for part in ("must", "should", "must_not")
    }


def read_filter(data: dict[str, list[JsonObject]] | None) -> Filter | None:
    """Returns the filter that `plain_filter` wrote."""
    if data is None:
        return None
    parts: dict[str, tuple[Condition, ...]] = {}
    for part, listed in data.items():
        fields = [{key: tuple(v) if isinstance(v, list) else v for key, v in each.items()} for each in listed]
        parts[part] = tuple(KINDS[str(each.pop("is"))](**each) for each in fields)
    return Filter(**parts)


def id_order(id: PointId) -> tuple[int, int | str]:
    """Returns the key that sorts ids as Qdrant does: numbers first, then UUIDs."""
    return (0, id) if isinstance(id, int) else (1, id)


def stacked(rows: Sequence[Array | None]) -> Array:
    """Returns vectors as one array to send."""
    present = [row for row in rows if row is not None]
    return np.concatenate(present).astype(np.float32) if present else NO_VECTORS


def rows_frame(rows: list[Row], more: JsonObject | None = None) -> Frame:
    """Returns points as an answer."""
    head = {"ids": [row.id for row in rows], "payloads": [row.payload for row in rows], **(more or {})}
    return Frame(head, stacked([row.vector for row in rows]))


def refusal(error: Exception) -> Frame:
    """Returns an error as an answer."""
    if isinstance(error, AnyNpuError):
        return Frame({"error": error.message, "hint": error.hint, "kind": type(error).__name__})
    return Frame({"error": f"the store failed: {type(error).__name__}: {error}", "hint": "", "kind": "IntegrityError"})
