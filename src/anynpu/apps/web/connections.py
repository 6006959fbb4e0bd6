"""All connections of one server: which are there, which are too slow, and their end.

One sweep a second looks for connections that are too slow, so that a good request pays next to nothing for it.
"""

from __future__ import annotations

import asyncio
import heapq
import threading
from email.utils import formatdate

from anynpu.apps.web.addresses import Addresses
from anynpu.apps.web.app import App
from anynpu.apps.web.heads import Heads
from anynpu.apps.web.protocol import HEAD, Connection

SWEEP_S = 1.0
LATE_S = 0.5
"""A sweep that comes this much later than it should says that this process did not run."""
SWEPT_AT_ONCE = 500
"""Connections looked at before other work has its turn."""


class Site:
    """What the connections of one server share."""

    def __init__(self, app: App, loop: asyncio.AbstractEventLoop) -> None:
        self.app, self.limits, self.loop = app, app.limits, loop
        self.connections: dict[Connection, None] = {}
        """In the order in which they came: the clock of the event loop gives those of one burst the same time."""
        self.addresses, self.heads = Addresses(app.limits), Heads()
        self.held_bytes = 0
        """Of bodies that are not whole yet."""
        self.draining = False
        self.writing = threading.Lock()
        """Held by a thread other than the event loop's while it writes to a connection."""
        self.swept_at, self.passed_over = loop.time(), False
        self.date = b""
        app.in_flight = lambda: sum(connection.turn is not None for connection in self.connections)
        self.tick()

    def tick(self) -> None:
        """Renews what changes every second."""
        self.date = b"date: %s\r\n" % formatdate(usegmt=True).encode()

    def due(self, now: float) -> list[Connection]:
        """Returns the connections to look at. A time in which this process was stopped or starved does not count, and
        what clients sent meanwhile is read first."""
        late_s, self.swept_at = now - self.swept_at - SWEEP_S, now
        self.tick()
        self.addresses.tick(now)
        if late_s > LATE_S:
            for connection in self.connections:
                connection.forgive(late_s)
        self.passed_over = late_s > LATE_S and not self.passed_over
        return [] if self.passed_over else list(self.connections)

    def connection(self) -> Connection:
        return Connection(self)

    def drain(self) -> None:
        """Closes the connections that wait for a request, and the others after their answer."""
        self.draining = True
        for connection in list(self.connections):
            if connection.phase is HEAD and connection.turn is None:
                connection.transport.close()

    def cancel(self) -> None:
        """Ends what is still being answered, with 503."""
        for connection in list(self.connections):
            if connection.turn is not None:
                connection.turn.cancel()
            else:
                connection.transport.close()

    def abort(self) -> None:
        """Closes what has not taken its answer."""
        for connection in list(self.connections):
            connection.transport.abort()

    def make_room(self) -> None:
        """Closes the connections that have waited longest for a request, one in a hundred at a time."""
        idle = [c for c in self.connections if c.phase is HEAD and c.turn is None and not c.transport.is_closing()]
        for connection in heapq.nsmallest(max(1, self.limits.connections // 100), idle, key=lambda c: c.since):
            connection.transport.abort()


async def sweep(site: Site) -> None:
    """Looks at all connections once a second."""
    while True:
        await asyncio.sleep(SWEEP_S)
        for number, connection in enumerate(site.due(site.loop.time()), 1):
            connection.sweep(site.loop.time())
            if number % SWEPT_AT_ONCE == 0:
                await asyncio.sleep(0)
