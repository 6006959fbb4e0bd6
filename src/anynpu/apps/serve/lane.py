"""The owner of one device: a thread that takes what queued up while it was busy, and never waits when it is idle.

Tickets and commands come through one inbox. Of the models that share the device, the one that used it least comes
first. A thread that a run never returns to is abandoned, and another takes its place: what it held is failed, what
waited goes on.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue
from typing import Any, NamedTuple, Protocol

from anynpu.apps.serve.program import Row

_logger = logging.getLogger("anynpu.serve")
IDLE_WAIT_S = 1.0
"""A command for idle time waits so long for some, and then has its turn."""


class Ticket:
    """The rows of one request on their way through a lane; only its owner's thread changes it after `submit`."""

    __slots__ = ("accepted", "batch", "batch_at", "client", "left", "order", "results", "rows", "run_s", "taken")

    def __init__(self, client: Client, order: Any, rows: list[Row], accepted: float) -> None:
        self.client, self.order, self.rows, self.accepted = client, order, rows, accepted
        self.results: list[Any] = [None] * len(rows)
        self.left = len(rows)
        self.taken, self.run_s, self.batch, self.batch_at = 0.0, 0.0, 0, 0.0


Part = tuple[Ticket, int]
"""A row of a ticket."""


class Client(Protocol):
    """A model as its lane sees it; every method is called in the lane's thread unless it says otherwise."""

    @property
    def held(self) -> bool:
        """Whether nothing of it is to run now: its session is being rebuilt."""
        ...

    def wanted(self, ticket: Ticket) -> bool:
        """Returns whether a ticket is still to be computed; one that is not is answered here."""
        ...

    def most(self, row: Row) -> int: ...

    def begin(self, part: Part) -> Callable[[], None] | None:
        """Has the device begin a row and returns what does the rest of `run`, in the lane's thread; None where it
        cannot begin at once. Called in the event loop, and never waits."""
        ...

    def run(self, parts: Sequence[Part]) -> None:
        """Computes rows of one group, fills in their results, and answers the tickets that are complete."""
        ...

    def lost(self, parts: Sequence[Part], limit_s: float) -> None:
        """A run did not return; called in the watching thread."""
        ...


@dataclass
class Queue:
    """What waits of one model: its parts in the order they came, and the seconds of the device that it has used."""

    parts: deque[Part] = field(default_factory=deque)
    used_s: float = 0.0


@dataclass(frozen=True)
class Command:
    """Something else to do in the owner's thread; `idle` ones wait for a moment without work."""

    do: Callable[[], None]
    idle: bool = False
    due: float = 0.0


WAKE = Command(lambda: None)


class Begun(NamedTuple):
    """A row that the device computes, and what its owner still has to do for it."""

    part: Part
    end: Callable[[], None]


class Lane:
    """A device and its owner."""

    def __init__(self, name: str, run_limit_s: float) -> None:
        self.name, self.run_limit_s = name, run_limit_s
        self._inbox: SimpleQueue[Ticket | Command | None] = SimpleQueue()
        self._queues: dict[Client, Queue] = {}
        self._idle: deque[Command] = deque()
        self._lock, self._owned = threading.Lock(), threading.Lock()
        self._generation, self._busy_since, self._limit_s = 0, 0.0, run_limit_s
        self._on_lost: Callable[[float], None] | None = None
        self._begun: Begun | None = None
        self.abandoned = 0
        self.closed = False
        self._start()

    def _start(self) -> None:
        # A daemon: a run that never returns must not keep the program from ending.
        arguments = (self._generation,)
        self._thread = threading.Thread(target=self._work, args=arguments, name=f"anynpu-{self.name}", daemon=True)
        self._thread.start()

    def submit(self, ticket: Ticket) -> None:
        self._inbox.put(ticket)

    def serve_here(self, ticket: Ticket) -> bool:
        """Runs a ticket of one row in the calling thread if nothing else waits for the device, and returns whether it
        did. Its owner has to wait meanwhile."""
        owned = self._owned
        if not owned.acquire(blocking=False):
            return False
        try:
            if not self._is_idle_for(ticket.client):
                return False
            if ticket.client.wanted(ticket):
                ticket.client.run([(ticket, 0)])
            return True
        finally:
            owned.release()

    def begin_here(self, ticket: Ticket) -> bool:
        """Has an idle device begin a ticket of one row in the calling thread, and returns whether it did: that does not
        wait for the owner to wake up. Its owner ends it before it does anything else."""
        owned = self._owned
        if not owned.acquire(blocking=False):
            return False
        try:
            client, part = ticket.client, (ticket, 0)
            if not self._is_idle_for(client):
                return False
            if not client.wanted(ticket):
                return True
            if (end := client.begin(part)) is None:
                return False
            self._begun = Begun(part, end)
        finally:
            owned.release()
        self.wake()
        return True

    def _is_idle_for(self, client: Client) -> bool:
        return not (self._begun or self.has_more() or self.closed or client.held)

    def call(self, do: Callable[[], None], idle: bool = False) -> None:
        """Has something done in the owner's thread."""
        self._inbox.put(Command(do, idle, time.monotonic() + IDLE_WAIT_S))

    def wake(self) -> None:
        """Has the owner look again at what is held."""
        self._inbox.put(WAKE)

    def close(self) -> None:
        """Ends the thread after what it is doing."""
        self.closed = True
        self._inbox.put(None)

    def join(self, limit_s: float = 1.0) -> None:
        """Waits a little for the thread to end; one that hangs is left alone."""
        self._thread.join(limit_s)

    def depth(self, client: Client) -> int:
        """Returns how many rows of a model wait; a look from any thread."""
        queue = self._queues.get(client)
        return len(queue.parts) if queue is not None else 0

    def has_more(self) -> bool:
        """Returns whether something waits for the device; called in the owner's thread."""
        return bool(self._idle) or not self._inbox.empty() or any(queue.parts for queue in self._queues.values())

    def take_back(self, client: Client) -> list[Ticket]:
        """Returns the tickets of a model that wait, and forgets them; called in the owner's thread."""
        self._absorb()
        queue = self._queues.pop(client, Queue())
        return list(dict.fromkeys(ticket for ticket, _ in queue.parts))

    def forget(self, client: Client) -> None:
        """Keeps nothing of a model that has had its last request; called in the owner's thread."""
        self._queues.pop(client, None)

    def _work(self, generation: int) -> None:
        owned = self._owned  # a thread that is given up keeps it; the next one has its own
        while self._generation == generation:
            try:
                with owned:
                    self._end_begun(generation)
                    if self._generation == generation:
                        self._absorb()
                    if self.closed or self._generation != generation:
                        return
                    if (command := self._next_command()) is not None:
                        command.do()
                        continue
                    if self._serve_next(generation):
                        continue
                    wait = None if not self._idle else 0.05
                try:
                    entry = self._inbox.get(timeout=wait)
                except Empty:
                    continue
                with owned:
                    self._end_begun(generation)
                    if self._generation == generation:
                        self._accept(entry)
                    else:  # given up meanwhile: the next owner is to have it
                        self._inbox.put(entry)
            except Exception:  # a defect in one answer must not end the owner of the device
                if self._generation == generation:
                    _logger.exception("device %s: internal error", self.name)

    def _absorb(self) -> None:
        generation = self._generation  # a thread that was given up during a command takes nothing more
        while self._generation == generation and not self._inbox.empty():
            self._accept(self._inbox.get_nowait())

    def _accept(self, entry: Ticket | Command | None) -> None:
        if entry is None:
            self.closed = True
        elif isinstance(entry, Command):
            if entry.idle:
                self._idle.append(entry)
            else:
                entry.do()
        else:
            queue = self._queue_of(entry.client)
            if not queue.parts:  # a model that was away has no claim to the time it did not use
                active = [other.used_s for other in self._queues.values() if other.parts]
                queue.used_s = max(queue.used_s, min(active, default=0.0))
            queue.parts.extend((entry, index) for index in range(len(entry.rows)))

    def _queue_of(self, client: Client) -> Queue:
        queue = self._queues.get(client)
        if queue is None:
            queue = self._queues[client] = Queue()
        return queue

    def _next_command(self) -> Command | None:
        if not self._idle:
            return None
        busy = any(queue.parts and not client.held for client, queue in self._queues.items())
        return self._idle.popleft() if not busy or time.monotonic() >= self._idle[0].due else None

    def _serve_next(self, generation: int) -> bool:
        """Runs a batch of the model that has used the device least, and returns whether anything waited."""
        ready = [(queue.used_s, client) for client, queue in self._queues.items() if queue.parts and not client.held]
        if not ready:
            return False
        client = min(ready, key=lambda pair: pair[0])[1]
        queue = self._queues[client]
        parts = _batch(client, queue.parts)
        if not parts:
            return True
        self._use(parts, lambda: client.run(parts), generation)
        return True

    def _end_begun(self, generation: int) -> None:
        begun, self._begun = self._begun, None
        if begun is not None:
            self._use([begun.part], begun.end, generation)

    def _use(self, parts: Sequence[Part], do: Callable[[], None], generation: int) -> None:
        """Has the device compute parts of one model, which are lost if it does not return."""
        client, began = parts[0][0].client, time.monotonic()
        self.guarded(do, self.run_limit_s, lambda limit_s: client.lost(parts, limit_s))
        if self._generation == generation:
            self._queue_of(client).used_s += time.monotonic() - began

    def guarded(self, do: Callable[[], None], limit_s: float, on_lost: Callable[[float], None]) -> None:
        """Does something with the device; called in the owner's thread. If it takes longer than it may, the thread is
        given up and `on_lost` is called in the watching thread."""
        generation = self._generation
        with self._lock:
            self._on_lost, self._busy_since, self._limit_s = on_lost, time.monotonic(), limit_s
        try:
            do()
        finally:
            with self._lock:
                if self._generation == generation:
                    self._on_lost, self._busy_since = None, 0.0

    @property
    def generation(self) -> int:
        """Changes when the thread is given up: what an earlier one still computes is not to be used."""
        return self._generation

    def sweep(self) -> None:
        """Answers what waits and is not wanted any more; called in the owner's thread."""
        for client, queue in self._queues.items():
            unwanted = {ticket for ticket in dict.fromkeys(t for t, _ in queue.parts) if not client.wanted(ticket)}
            if unwanted:
                queue.parts = deque(part for part in queue.parts if part[0] not in unwanted)

    def forgive(self, seconds: float) -> None:
        """Takes time off what the device has been busy: this process did not run."""
        with self._lock:
            if self._busy_since:
                self._busy_since += seconds

    def watch(self, now: float) -> bool:
        """Gives the thread up if the device has not returned in time, and returns whether it did so."""
        with self._lock:
            since = self._busy_since
            if not since or now - since <= self._limit_s:
                return False
            on_lost, limit_s = self._on_lost, self._limit_s
            self._generation += 1
            self._on_lost, self._busy_since = None, 0.0
            self._owned = threading.Lock()
            self.abandoned += 1
        if on_lost is not None:
            on_lost(limit_s)
        self._start()
        return True


def _batch(client: Client, parts: deque[Part]) -> list[Part]:
    """Takes the oldest part that is wanted, and those behind it that may run with it."""
    taken: list[Part] = []
    passed: list[Part] = []
    most = 1
    while parts and len(taken) < most:
        ticket, index = part = parts.popleft()
        if not client.wanted(ticket):
            continue
        row = ticket.rows[index]
        if not taken:
            taken.append(part)
            most = client.most(row)
        elif row.group == taken[0][0].rows[taken[0][1]].group:
            taken.append(part)
        else:
            passed.append(part)
    parts.extendleft(reversed(passed))
    return taken
