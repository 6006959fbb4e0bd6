"""The store's process: `python -m anynpu.vectors.edge.server FOLDER DESCRIPTOR`, started by a client.

It listens on a socket that it inherits, owns the folder while it lives, and ends when its last client has gone. One
thread does everything that touches the engine, in small steps: reads are answered as they come, writes go on a few
points at a time between them. Another thread makes the logs durable once a second.
"""

from __future__ import annotations

import fcntl
import gc
import os
import selectors
import shutil
import socket
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from anynpu.errors import AnyNpuError, ConfigError, IntegrityError
from anynpu.vectors.edge.layers import Layers
from anynpu.vectors.edge.operations import READS, WRITES, Operations
from anynpu.vectors.edge.record import LOCK, check_record
from anynpu.vectors.edge.wire import (
    SPIN_S,
    Frame,
    decode,
    encode,
    refusal,
    size_of,
)

SYNC_S = 1.0
"""A loss of power costs at most what was written in this time."""
TEND_S = 0.02
"""How often builds are looked after: to ask for the size of a tail costs as much as a query."""
LOCK_WAIT_S = 30.0
FIRST_CLIENT_S = 20.0
RESERVE_BYTES = 32 << 20
"""This much of the disk is left free: the engine's process would die on a full one."""


@dataclass
class Client:
    """A connection, and what is not yet read from it or written to it."""

    socket: socket.socket
    received: bytearray = field(default_factory=bytearray)
    unsent: bytearray = field(default_factory=bytearray)
    leaving: bool = False


@dataclass
class Work:
    """A write under way: its steps, and who waits for it."""

    client: Client
    steps: Iterator[None]


class Server:
    """One folder of collections, and the clients that use it."""

    def __init__(self, folder: Path, listening: socket.socket) -> None:
        self.folder = folder
        self.operations = Operations(folder)
        self._clients: dict[int, Client] = {}
        self._work: deque[Work] = deque()
        self._waiting: list[tuple[Client, Callable[[], Frame | None]]] = []
        self._syncing: threading.Thread | None = None
        self._synced_at = self._tended_at = self._started = time.monotonic()
        self._written = self._served = self._quick = False
        self._failure: AnyNpuError | None = None
        self._selector = selectors.DefaultSelector()
        listening.setblocking(False)
        self._listening = listening
        self._selector.register(listening, selectors.EVENT_READ, None)

    def prepare(self) -> None:
        """Takes the folder, or keeps the reason why not for those who ask."""
        try:
            self._lock = os.open(self.folder / LOCK, os.O_RDWR | os.O_CREAT, 0o600)
            until = time.monotonic() + LOCK_WAIT_S  # another one may be on its way out
            while True:
                try:
                    fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if time.monotonic() > until:
                        raise ConfigError(
                            f"{self.folder}: another process has this store open", "end it, or choose another folder"
                        ) from None
                    time.sleep(0.02)
            check_record(self.folder)
        except AnyNpuError as error:
            self._failure = error
        except OSError as error:
            self._failure = ConfigError(f"{self.folder}: cannot be used as a store ({error.strerror})")

    def serve(self) -> None:
        """Serves until the last client has gone."""
        while not self._over():
            for key, events in self._ready():
                if key.data is None:
                    with suppress(BlockingIOError):
                        connection, _ = self._listening.accept()
                        connection.setblocking(False)
                        client = Client(connection)
                        self._clients[connection.fileno()] = client
                        self._selector.register(connection, selectors.EVENT_READ, client)
                        self._served = True
                else:
                    self._exchange(key.data, events)
            self._advance()
            still = []
            for client, finished in self._waiting:
                answer = finished()
                if answer is None:
                    still.append((client, finished))
                else:
                    self._send(client, encode(answer))
            self._waiting = still
            if time.monotonic() - self._tended_at > TEND_S:
                self._tended_at = time.monotonic()
                for collection in self.operations.layers.values():
                    collection.tend()
            if self._written and time.monotonic() - self._synced_at > SYNC_S:
                self._sync()

    def _ready(self) -> list[tuple[selectors.SelectorKey, int]]:
        """Waits until a socket is ready, or until it is time to look after something else."""
        if self._quick and not self._work:
            until = self.operations.read_at + SPIN_S
            while time.monotonic() < until:
                if ready := self._selector.select(0):
                    return ready
                os.sched_yield()
        return self._selector.select(
            0.0 if self._work else 0.005 if self._waiting else 0.02 if self.operations.building() else 0.2
        )

    def _over(self) -> bool:
        if self._clients:
            return all(client.leaving for client in self._clients.values()) and not self._work
        return self._served or time.monotonic() - self._started > FIRST_CLIENT_S

    def close(self) -> None:
        """Puts everything on the disk; clients that wait for that see their connection end."""
        for collection in self.operations.layers.values():
            collection.close()

    def _drop(self, client: Client) -> None:
        self._selector.unregister(client.socket)
        del self._clients[client.socket.fileno()]
        client.socket.close()
        # Writes under way go on: they are wanted, though nobody hears that they are done.

    def _exchange(self, client: Client, events: int) -> None:
        try:
            if events & selectors.EVENT_WRITE:
                self._send(client, b"")
            if events & selectors.EVENT_READ:
                data = client.socket.recv(1 << 20)
                if not data:
                    self._drop(client)
                    return
                client.received += data
                while (
                    (size := size_of(client.received)) and len(client.received) >= size and client.socket.fileno() >= 0
                ):
                    frame = decode(bytes(client.received[:size]))
                    del client.received[:size]
                    self._answer(client, frame)
        except (OSError, IntegrityError):
            self._drop(client)

    def _send(self, client: Client, data: bytes) -> None:
        if client.socket.fileno() < 0:
            return
        if not client.unsent:
            try:
                sent = client.socket.send(data) if data else 0
            except BlockingIOError:
                sent = 0
            except OSError:
                return  # it has gone; reading from it says so
            data = data[sent:]
        client.unsent += data
        if client.unsent and not data:
            with suppress(BlockingIOError):
                del client.unsent[: client.socket.send(client.unsent)]
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if client.unsent else 0)
        if self._selector.get_key(client.socket).events != events:
            self._selector.modify(client.socket, events, client)

    def _answer(self, client: Client, frame: Frame) -> None:
        """Answers a read; takes a write in, to be answered when it is done."""
        try:
            if self._failure is not None:
                raise self._failure
            operation = frame.head.get("op")
            if operation in READS:
                self._quick = time.monotonic() - self.operations.read_at < SPIN_S
                self._send(client, encode(READS[operation](self.operations, frame)))
                self.operations.read_at = time.monotonic()
            elif operation in WRITES:
                free = shutil.disk_usage(self.folder).free
                if free < RESERVE_BYTES + len(frame.vectors) * 16:
                    raise ConfigError(
                        f"{self.folder}: no space left on the disk ({free >> 20} MiB)",
                        "free some, or choose another folder",
                    )
                self.operations.wrote_at = time.monotonic()
                self._work.append(Work(client, WRITES[operation](self.operations, frame)))
            elif operation == "flush":
                self._waiting.append((client, self._synced()))
            elif operation == "optimize":
                self._waiting.append((client, self._indexed(self.operations.opened(frame))))
            elif operation == "bye":
                client.leaving = True
                if not self._over():  # others stay: it need not wait for the end
                    self._drop(client)
            else:
                raise ConfigError(f"the store knows no operation {operation!r}")
        except Exception as error:
            self._send(client, encode(refusal(error)))

    def _advance(self) -> None:
        """Goes one step on with the first write."""
        if not self._work:
            return
        work = self._work[0]
        try:
            self._written = True
            next(work.steps)
            return
        except StopIteration:
            answer = Frame({"ok": True})
        except Exception as error:
            answer = refusal(error)
        self._work.popleft()
        self._send(work.client, encode(answer))

    def _sync(self) -> threading.Thread:
        """Starts to make the logs durable, in a thread of its own."""
        if self._syncing is not None and self._syncing.is_alive():
            return self._syncing
        shards = [shard for collection in self.operations.layers.values() for shard in collection.dirty_shards()]
        self._written, self._synced_at = False, time.monotonic()

        def work() -> None:
            for shard in shards:
                shard.sync_log()

        self._syncing = threading.Thread(target=work, daemon=True)
        self._syncing.start()
        return self._syncing

    def _synced(self) -> Callable[[], Frame | None]:
        """Returns the answer to come, once everything that is written now is on the disk."""
        before = self._syncing  # one that began before may have passed what was written since
        mine: list[threading.Thread] = []

        def finished() -> Frame | None:
            if not mine and not (before is not None and before.is_alive()):
                mine.append(self._sync())
            return Frame({"ok": True}) if mine and not mine[0].is_alive() else None

        return finished

    def _indexed(self, collection: Layers) -> Callable[[], Frame | None]:
        """Returns the answer to come, once one index holds all points of a collection."""
        collection.want_index()

        def finished() -> Frame | None:
            if collection.trouble:
                return refusal(IntegrityError(collection.trouble))
            return Frame({"ok": True}) if not collection.wanted else None

        return finished


def main(folder: str, descriptor: str) -> None:
    """Serves a folder on a listening socket that the client opened."""
    server = Server(Path(folder), socket.socket(fileno=int(descriptor)))
    server.prepare()
    gc.freeze()
    try:
        server.serve()
    finally:
        server.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
