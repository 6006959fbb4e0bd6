"""A store in a folder: starts its process or joins the one that is there, and speaks with it over a socket."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

from anynpu import errors, schema, tool
from anynpu.errors import AnyNpuError, ConfigError, ToolFailed
from anynpu.files import writing
from anynpu.schema import Json, JsonObject
from anynpu.tensors import Array
from anynpu.vectors.base import (
    LENGTH,
    CollectionSpec,
    Filter,
    Hit,
    Info,
    Page,
    Point,
    PointId,
    Row,
    VectorSpace,
    checked_id,
)
from anynpu.vectors.checks import checked_key, checked_limit, checked_points, checked_vector
from anynpu.vectors.edge.server import RESERVE_BYTES
from anynpu.vectors.edge.wire import PROTOCOL, SPIN_S, Frame, encode, plain_filter, receive

SOCKET, LOG, START = "socket", "log", "start"
BATCH = 256
"""Points sent at a time."""
MOST_LOG_BYTES = 1 << 20
CLOSE_S = 120.0
LAST_LINES = 5


class EdgeStore:
    """Collections in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._idle: list[socket.socket] = []
        self._guard = threading.Lock()
        self._process: tool.Process | None = None
        self._owner = os.getpid()
        self._closed = False
        self._quick = False
        """The last query was answered before it would have been worth sleeping, and nobody else needed the cores."""
        with writing(folder):
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._return(self._connect())

    @classmethod
    def at(cls, where: str) -> EdgeStore:
        """Opens the store in a folder, which is made if it is not there."""
        tool.version_of("qdrant-edge-py", "vectors")
        tool.version_of("orjson", "vectors")
        return cls(Path(where).expanduser().absolute())

    @property
    def where(self) -> str:
        return str(self.folder)

    def names(self) -> list[str]:
        return list(self.ask({"op": "names"}).head["names"])

    def create(self, spec: CollectionSpec) -> EdgeCollection:
        self.ask({"op": "create", "spec": schema.to_dict(spec, whole=True)})
        collection = self.open(spec.name, spec.space)
        if set(collection.spec.fields) != set(spec.fields):
            raise ConfigError(
                f"{spec.name} is there with other fields: {', '.join(sorted(f.key for f in collection.spec.fields))}",
                "drop it, or choose another name",
            )
        return collection

    def open(self, name: str, space: VectorSpace | None = None) -> EdgeCollection:
        head = self.ask({"op": "spec", "collection": name}).head
        spec = schema.from_dict(CollectionSpec, head["spec"], f"{self.folder}: {name}")
        if space is not None:
            spec.space.require(space, name)
        return EdgeCollection(self, spec)

    def drop(self, name: str) -> None:
        self.ask({"op": "drop", "collection": name})

    def process_id(self) -> int:
        """Returns the id of the store's process."""
        return int(self.ask({"op": "hello", "protocol": PROTOCOL}).head["process"])

    def close(self) -> None:
        """Leaves; returns, if nobody else uses the store, when its process has put everything on the disk."""
        self._closed = True
        with self._guard:
            connections, self._idle = self._idle, []
        for connection in connections:
            with suppress(OSError, EOFError):
                connection.sendall(encode(Frame({"op": "bye"})))
        for connection in connections[:-1]:
            connection.close()
        if connections:
            with suppress(OSError, EOFError), connections[-1] as last:
                last.settimeout(CLOSE_S)
                while last.recv(1 << 16):
                    pass
        if self._process is not None and self._owner == os.getpid():
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(0.5)
            if self._process.stdin is not None:
                self._process.stdin.close()

    def __enter__(self) -> EdgeStore:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # The socket

    def ask(self, head: JsonObject, vectors: Array | None = None) -> Frame:
        """Returns the store's answer. A process that has died is started again, and asked again: every operation means
        the same twice as once."""
        request = encode(Frame(head) if vectors is None else Frame(head, vectors))
        for attempt in range(3):
            connection = self._take(fresh=attempt > 0)
            try:
                connection.sendall(request)
                if head["op"] == "query":
                    # Receives what is most often there before it would be worth sleeping;
                    # writes take longer
                    sent = time.perf_counter()
                    answer = receive(connection, SPIN_S if self._quick else 0.0)
                    self._quick = time.perf_counter() - sent < SPIN_S and not answer.head.get("busy")
                else:
                    answer = receive(connection)
            except (OSError, EOFError):
                connection.close()
                continue
            except BaseException:
                connection.close()  # an answer to come would be taken for that of the next request
                raise
            self._return(connection)
            return _accepted(answer)
        raise self._lost()

    def _take(self, fresh: bool) -> socket.socket:
        if self._closed:
            raise ConfigError(f"{self.folder}: the store has been closed")
        with self._guard:
            if os.getpid() != self._owner:  # after a fork the connections belong to the parent
                self._idle, self._owner, self._process = [], os.getpid(), None
            if self._idle and not fresh:
                return self._idle.pop()
        return self._connect()

    def _return(self, connection: socket.socket) -> None:
        with self._guard:
            self._idle.append(connection)

    def _connect(self) -> socket.socket:
        """Returns a connection to the process of the store, which is started if there is none."""
        from filelock import FileLock

        for _ in range(3):
            with suppress(OSError, EOFError):
                return self._joined()
            with writing(self.folder), FileLock(self.folder / START):
                with suppress(OSError, EOFError):
                    return self._joined()
                self._start()
                with suppress(OSError, EOFError):
                    return self._joined()
        raise self._lost()

    def _joined(self) -> socket.socket:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            with _short(self.folder) as short:
                connection.connect(f"{short}/{SOCKET}")
            connection.sendall(encode(Frame({"op": "hello", "protocol": PROTOCOL})))
            _accepted(receive(connection))
        except BaseException:
            connection.close()
            raise
        return connection

    def _start(self) -> None:
        log = self.folder / LOG
        listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        (self.folder / SOCKET).unlink(missing_ok=True)
        with listening, _short(self.folder) as short:
            before = os.umask(0o077)
            try:
                listening.bind(f"{short}/{SOCKET}")
            finally:
                os.umask(before)
            listening.listen(64)
            how = os.O_WRONLY | os.O_CREAT | os.O_APPEND
            how |= os.O_TRUNC if log.exists() and log.stat().st_size > MOST_LOG_BYTES else 0
            output = os.open(log, how, 0o600)
            try:
                self._process = tool.attend(
                    "anynpu.vectors.edge.server",
                    str(self.folder),
                    str(listening.fileno()),
                    descriptors=[listening.fileno()],
                    output=output,
                    environment={**os.environ, "OPENBLAS_NUM_THREADS": "1"},  # a thread more waits for a busy core
                )
            finally:
                os.close(output)

    def _lost(self) -> AnyNpuError:
        """Returns why the process of the store does not answer, as far as that can be seen."""
        if shutil.disk_usage(self.folder).free < RESERVE_BYTES:
            return ConfigError(f"{self.folder}: no space left on the disk", "free some, or choose another folder")
        log = self.folder / LOG
        lines = log.read_text("utf-8", "replace").splitlines()[-LAST_LINES:] if log.exists() else []
        status = self._process.poll() if self._process is not None else None
        return ToolFailed(
            f"{self.folder}: the store's process ends again and again", (), status, str(log), lines, f"see {log}"
        )


@contextmanager
def _short(folder: Path) -> Iterator[str]:
    """Gives a name of the folder that fits into the 108 bytes of a socket's address."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        yield f"/proc/self/fd/{handle}"
    finally:
        os.close(handle)


def _accepted(answer: Frame) -> Frame:
    if "error" not in answer.head:
        return answer
    kind = getattr(errors, str(answer.head.get("kind")), errors.IntegrityError)
    raise kind(answer.head["error"], hint=answer.head["hint"])


class EdgeCollection:
    """A collection in a folder."""

    def __init__(self, store: EdgeStore, spec: CollectionSpec) -> None:
        self._store, self._spec = store, spec

    @property
    def spec(self) -> CollectionSpec:
        return self._spec

    def _ask(self, operation: str, vectors: Array | None = None, **more: Any) -> Frame:
        return self._store.ask({"op": operation, "collection": self._spec.name, **more}, vectors)

    def upsert(self, points: Sequence[Point]) -> None:
        ids, rows, payloads = checked_points(self._spec, points)
        for start in range(0, len(points), BATCH):
            some = slice(start, start + BATCH)
            self._ask("upsert", rows[some], ids=ids[some], payloads=payloads[some])

    def delete(self, ids: Sequence[PointId]) -> None:
        checked = [checked_id(id) for id in ids]
        for start in range(0, len(checked), BATCH):
            self._ask("delete", ids=checked[start : start + BATCH])

    def delete_where(self, where: Filter) -> None:
        self._ask("delete_where", where=plain_filter(where))

    def query(
        self,
        vector: Array,
        limit: int = 10,
        *,
        where: Filter | None = None,
        offset: int = 0,
        with_vector: bool = False,
        exact: bool = False,
    ) -> list[Hit]:
        row = checked_vector(self._spec, vector)
        wanted = checked_limit(limit + offset)
        answer = self._ask("query", row, limit=wanted, where=plain_filter(where), with_vector=with_vector, exact=exact)
        points = zip(self._points(answer), answer.head["scores"], strict=True)
        return [Hit(id, score, payload, vector) for (id, payload, vector), score in points][offset:]

    def retrieve(self, ids: Sequence[PointId], *, with_vector: bool = False) -> list[Row]:
        checked = [checked_id(id) for id in ids]
        return self._rows(self._ask("retrieve", ids=checked, with_vector=with_vector))

    def scroll(
        self,
        *,
        where: Filter | None = None,
        after: PointId | None = None,
        limit: int = 256,
        with_vector: bool = False,
    ) -> Page:
        start = None if after is None else checked_id(after)
        answer = self._ask(
            "scroll", where=plain_filter(where), after=start, limit=checked_limit(limit), with_vector=with_vector
        )
        rows = self._rows(answer)
        return Page(tuple(rows[:limit]), rows[limit - 1].id if len(rows) > limit else None)

    def newest(self, key: str, limit: int, *, where: Filter | None = None, with_vector: bool = False) -> list[Row]:
        answer = self._ask(
            "newest",
            key=checked_key(self._spec, key),
            limit=checked_limit(limit),
            where=plain_filter(where),
            with_vector=with_vector,
        )
        return self._rows(answer)

    def count(self, where: Filter | None = None) -> int:
        return int(self._ask("count", where=plain_filter(where)).head["count"])

    def info(self) -> Info:
        return Info(**self._ask("info").head)

    def flush(self) -> None:
        self._ask("flush")

    def optimize(self) -> None:
        self._ask("optimize")

    def _rows(self, answer: Frame) -> list[Row]:
        return [Row(*point) for point in self._points(answer)]

    def _points(self, answer: Frame) -> Iterator[tuple[PointId, dict[str, Json], Array | None]]:
        """Returns the id, the payload and, where it was asked for, the vector of every point."""
        ids, payloads = answer.head["ids"], answer.head["payloads"]
        lengths = [1.0] * len(ids)
        if not self._spec.space.normalized:
            lengths = [payload.pop(LENGTH) for payload in payloads]
        if not len(answer.vectors):
            return zip(ids, payloads, [None] * len(ids), strict=True)
        vectors = answer.rows(self._spec.space.width) * np.asarray(lengths, np.float32)[:, None]
        return zip(ids, payloads, vectors, strict=True)
