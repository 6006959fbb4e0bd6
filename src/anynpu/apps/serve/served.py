"""One version of a model as the owner of its device sees it: what is wanted, what runs, and what a failure means."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, Protocol

from anynpu.apps.serve.base import Early, Expired, Info, Outcome, Request, Then
from anynpu.apps.serve.lane import Lane, Part, Ticket
from anynpu.apps.serve.program import Program, Row
from anynpu.apps.serve.shortcut import Shortcut
from anynpu.apps.serve.version import Loaded
from anynpu.errors import AnyNpuError, ConfigError, DeviceError, first_line
from anynpu.runtime.abilities import on_hardware


class Version:
    """A version in use: its sessions now, and how many requests still need it. Changed in the event loop only."""

    def __init__(self, loaded: Loaded, lane: Lane, info: Info, twin: bool = False) -> None:
        self.loaded, self.lane, self.info, self.twin = loaded, lane, info, twin
        self.shortcut = Shortcut(loaded.sessions)
        self.users = 0
        self.retired = False
        self.distrusted = False
        """Its known answers were wrong: nothing that it computed is to leave."""


class Waiting(NamedTuple):
    """Who waits for the outcome of a request."""

    then: Then
    early: Early | None


@dataclass(eq=False, slots=True)
class Order:
    """A request that was accepted. Changed in the event loop only, but for `prepared` and `take`."""

    owner: Owner
    request: Request
    waiting: list[Waiting]
    """Who waits for the outcome; empty once it is known. A list, since popping from it is atomic."""
    version: Version
    items: int
    prepared: float = 0.0

    @property
    def done(self) -> bool:
        return not self.waiting

    def take(self) -> Waiting | None:
        """Returns who waits to the first who asks, in any thread: that one has to answer."""
        try:
            return self.waiting.pop()
        except IndexError:
            return None

    def cancel(self) -> None:
        """Gives the request up; called in the event loop."""
        if not self.done:
            self.owner.settle([(self, asyncio.CancelledError())])


class Owner(Protocol):
    """The deployment that a version answers for; every method may be called from any thread."""

    def ran(self, version: Version, rows: Sequence[Row], took_s: float, complete: Sequence[Ticket]) -> None: ...

    def settle(self, outcomes: Sequence[tuple[Order, Outcome]]) -> None: ...

    def device_lost(self, version: Version, error: AnyNpuError) -> None: ...


class Served:
    """The part of a deployment that a lane sees: one version of it."""

    def __init__(self, owner: Owner, version: Version) -> None:
        self.owner, self.version = owner, version
        self.held = False

    def wanted(self, ticket: Ticket) -> bool:
        order: Order = ticket.order
        if order.done:
            return False
        if time.monotonic() > order.request.deadline:
            self.owner.settle([(order, Expired("the deadline passed before the request was computed"))])
            return False
        if order.request.gone():
            self.owner.settle([(order, Expired("the client left before the request was computed"))])
            return False
        return True

    def program(self, row: Row) -> Program:
        loaded = self.version.loaded
        return loaded.raw if row.group == "raw" else loaded.program

    def most(self, row: Row) -> int:
        return self.program(row).most(row.group)

    def begin(self, part: Part) -> Callable[[], None] | None:
        now, row = time.monotonic(), part[0].rows[part[1]]
        end: Callable[[], Any] | None
        try:
            end = self.program(row).begin(row)
        except Exception as error:  # what it means takes a while to find out
            end = partial(_raise, error)
        return None if end is None else partial(self._complete, [part], lambda: [end()], now)

    def run(self, parts: Sequence[Part]) -> None:
        rows = [ticket.rows[index] for ticket, index in parts]
        compute = self.program(rows[0]).compute
        self._complete(parts, lambda: compute(rows[0].group, rows), time.monotonic())

    def _complete(self, parts: Sequence[Part], compute: Callable[[], list[Any]], now: float) -> None:
        lane, generation = self.version.lane, self.version.lane.generation
        for ticket, _ in parts:
            ticket.taken = ticket.taken or now
        rows = [ticket.rows[index] for ticket, index in parts]
        loaded = self.version.loaded
        try:
            results = compute()
        except Exception as error:  # of any runtime; the policy decides what it means
            if lane.generation == generation:
                self._failed(parts, device_error(error), loaded, generation)
            return
        if lane.generation != generation:  # given up in the meantime: whoever asked was answered
            return
        took_s = time.monotonic() - now
        complete = []
        for (ticket, index), result in zip(parts, results, strict=True):
            ticket.results[index] = result
            ticket.left -= 1
            if ticket.batch_at != now:
                ticket.batch_at, ticket.batch = now, len(parts)
                ticket.run_s += took_s
            if not ticket.left:
                complete.append(ticket)
        self.owner.ran(self.version, rows, took_s, complete)

    def _failed(self, parts: Sequence[Part], error: AnyNpuError, loaded: Loaded, generation: int) -> None:
        """Tells a request that the model refuses from a device that is lost, by the known answers."""
        tickets = list(dict.fromkeys(ticket for ticket, _ in parts))
        lost = isinstance(error, DeviceError) and on_hardware(loaded.sessions[0])
        if not lost:
            try:
                loaded.check(1)
            except Exception:
                lost = True
        if self.version.lane.generation != generation:
            return
        if lost:
            self.owner.settle([(ticket.order, in_flight(error)) for ticket in tickets])
            self.owner.device_lost(self.version, error)
        elif len(tickets) == 1:
            refusal = (
                ConfigError(f"the model refuses this input: {error.message}")
                if isinstance(error, DeviceError)
                else error
            )
            self.owner.settle([(tickets[0].order, refusal)])
        else:
            for ticket in tickets:
                self.run([part for part in parts if part[0] is ticket])

    def lost(self, parts: Sequence[Part], limit_s: float) -> None:
        error = DeviceError(f"the device did not return within {limit_s:g} s", "run", cause="it hangs")
        self.owner.settle([(ticket.order, in_flight(error)) for ticket in dict.fromkeys(t for t, _ in parts)])
        self.owner.device_lost(self.version, error)


def _raise(error: Exception) -> None:
    raise error


def device_error(error: Exception) -> AnyNpuError:
    """Returns what a session raised as an error of ours."""
    if isinstance(error, AnyNpuError):
        return error
    return DeviceError(f"the session failed: {type(error).__name__}: {first_line(error)}", "run")


def in_flight(error: AnyNpuError) -> DeviceError:
    """Returns the error for a request that was on the device when it failed."""
    return DeviceError(
        f"the device failed while it computed this: {error.message}",
        getattr(error, "call", ""),
        getattr(error, "code", None),
        getattr(error, "cause", ""),
        "send it again",
    )
