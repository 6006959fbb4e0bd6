"""One named model: what it accepts, which version answers, and what happens when its device fails.

    ready     the device answers
    failed    its session was lost and is opened again, with growing pauses; what waits keeps waiting for the first try
    degraded  the known answers are wrong: nothing of the device leaves the server until they are right again

With a CPU twin, requests go to the twin while the device is failed or degraded.
"""

from __future__ import annotations

import asyncio
import logging
import math
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from typing import Any

from anynpu.apps.serve.base import (
    Answer,
    Canary,
    Early,
    FleetSettings,
    Health,
    Info,
    Item,
    Kind,
    Observer,
    Outcome,
    Overloaded,
    Request,
    State,
    Stopped,
    Then,
    TooLarge,
)
from anynpu.apps.serve.counts import Counts, refusal_of
from anynpu.apps.serve.lane import Ticket
from anynpu.apps.serve.orders import awaited, finished, prepared, token_counts
from anynpu.apps.serve.program import Program, Row, Texts
from anynpu.apps.serve.served import Order, Served, Version, Waiting
from anynpu.apps.serve.shortcut import CROWDED_S
from anynpu.apps.serve.version import Loaded
from anynpu.errors import AccuracyError, AnyNpuError, ConfigError, DeviceError
from anynpu.memory import give_back

SMOOTH = 0.1
"""The weight of the newest run in the mean time of a row."""
GIVE_BACK_S = 0.5
"""After a version was closed, its memory goes back to the system."""
_logger = logging.getLogger("anynpu.serve")


class Deployment:
    """A model that answers requests. Every method runs in the event loop unless it says otherwise."""

    def __init__(
        self,
        name: str,
        kind: Kind,
        settings: FleetSettings,
        observer: Observer,
        pool: ThreadPoolExecutor,
        alone: bool = False,
    ) -> None:
        self.name, self.kind, self.limits = name, kind, settings.limits
        self._settings, self._observer, self._pool = settings, observer, pool
        self._loop: asyncio.AbstractEventLoop
        self.device: Version | None = None
        self.twin: Version | None = None
        self._served: dict[Version, Served] = {}
        self.state: State = "starting"
        self.reason = ""
        self.counts = Counts()
        self.canary = Canary()
        self.checked_at: float | None = None
        self._waiting = 0
        self._row_s = 0.0
        self._alone, self._crowded_at = alone, -math.inf
        self.draining = False
        self.refusing = ""
        """Why the device takes no requests now, or an empty string."""
        self._on_lost: Callable[[Deployment, Version, AnyNpuError], None]
        self._on_suspect: Callable[[Deployment], None]
        self.emptied = asyncio.Event()
        self.emptied.set()
        self._orders: set[Order] = set()
        self.loosening = 0
        """Versions of it that are made to take any number of rows."""

    def attach(
        self,
        loop: asyncio.AbstractEventLoop,
        on_lost: Callable[[Deployment, Version, AnyNpuError], None],
        on_suspect: Callable[[Deployment], None],
    ) -> None:
        """Says in which loop it lives, and who is to act when a device is lost or an answer makes no sense."""
        self._loop, self._on_lost, self._on_suspect = loop, on_lost, on_suspect
        self._thread = threading.get_ident()

    # Requests

    async def answer(self, request: Request) -> Answer:
        """Returns the answer to a request, computed by one version."""
        return await awaited(self.ask, request, self._loop)

    def ask(self, request: Request, then: Then, early: Early | None = None) -> Order | None:
        """Has `then` called once with the outcome; returns what gives the request up, unless that has happened."""
        try:
            version = self._version_for(request)
        except AnyNpuError as error:
            self._refuse(error, request)
            then(error)
            return None
        order = Order(self, request, [Waiting(then, early)], version, len(request.items))
        version.users += 1
        self._waiting += order.items
        self._orders.add(order)
        self.emptied.clear()
        self._submit(order)
        return order

    def _refuse(self, error: AnyNpuError, request: Request) -> None:
        why = refusal_of(error, request)
        self.counts.refused[why] += 1
        self._observer.refused(self.name, why)

    def _version_for(self, request: Request) -> Version:
        """Returns the version that is to answer, or says why none does."""
        if self.draining or self.state == "stopped":
            raise Stopped("the server is shutting down")
        count, limit = len(request.items), self.limits.items
        if not count:
            raise ConfigError("the request holds nothing to compute")
        if count > limit:
            raise TooLarge(f"the request holds {count} items, at most {limit} are taken at once", "send it in parts")
        if self._waiting and self._waiting + count > self._settings.queue:
            wait_s = max(0.05, self._waiting * self._row_s)
            raise Overloaded(f"{self._waiting} items wait already, the queue takes {self._settings.queue}", wait_s)
        if self.device is not None and not self.refusing:
            return self.device
        if self.twin is not None:
            return self.twin
        raise DeviceError(self.refusing or "the model is not loaded", "queue", hint="try again later")

    def _submit(self, order: Order) -> None:
        """Prepares the items of an order and queues them at its version's device; what is slow goes to the pool."""
        items, loaded = order.request.items, order.version.loaded
        program = loaded.raw if isinstance(items[0], Mapping) else loaded.program
        try:
            if program.is_quick(items):
                self._queue(order, prepared(order, program, self.limits), quick=True)
            else:
                self._pool.submit(self._prepare_apart, order, program)
        except Exception as error:
            self._resolve([(order, error)])

    def _prepare_apart(self, order: Order, program: Program) -> None:
        try:
            rows = prepared(order, program, self.limits)
        except Exception as error:
            self.settle([(order, error)])
        else:
            self._in_loop(self._queue, order, rows)

    def _queue(self, order: Order, rows: list[Row], quick: bool = False) -> None:
        if order.done:
            return
        version, now = order.version, time.monotonic()
        ticket, lane = Ticket(self._serving(version), order, rows, now), version.lane
        if not self._is_alone(order):
            self._crowded_at = now
        elif len(rows) == 1 and now - self._crowded_at > CROWDED_S:
            if self._alone and version.shortcut.takes(rows):
                self._loop.call_soon(self._run_here, ticket)  # whoever asks in the same turn of the loop is seen first
                return
            if quick and lane.begin_here(ticket):
                return
        lane.submit(ticket)

    def _is_alone(self, order: Order) -> bool:
        """Returns whether nobody else waits; an answer that its client has already is perhaps not counted yet."""
        return self._waiting <= order.items or (len(self._orders) == 2 and any(other.done for other in self._orders))

    def _run_here(self, ticket: Ticket) -> None:
        order: Order = ticket.order
        try:
            if not self._is_alone(order) or not order.version.lane.serve_here(ticket):
                order.version.lane.submit(ticket)
        except Exception as error:
            self._resolve([(order, error)])

    def _serving(self, version: Version) -> Served:
        served = self._served.get(version)
        if served is None:
            served = self._served[version] = Served(self, version)
        return served

    def _release(self, version: Version) -> None:
        version.users -= 1
        if version.retired and not version.users:
            self.forget(version)

    def forget(self, version: Version) -> None:
        """Gives back the sessions of a version that nobody needs any more."""
        served = self._served.pop(version, None)
        if served is not None:
            version.lane.call(lambda: version.lane.forget(served))
        loop = self._loop
        closing = loop.run_in_executor(None, version.loaded.close)
        # Not at once: tokenizer and arrays are free only when the last reference to the version has gone.
        closing.add_done_callback(lambda _: loop.call_later(GIVE_BACK_S, loop.run_in_executor, None, give_back))

    async def tokens(self, items: Sequence[Item]) -> tuple[int, ...]:
        """Returns how many tokens every text has before it is cut."""
        version = self.device or self.twin
        program = version.loaded.program if version is not None else None
        if not isinstance(program, Texts):
            raise ConfigError(f"model {self.name} reads no text")
        return await self._loop.run_in_executor(self._pool, token_counts, program.tokens, items, self.limits)

    # What the device's owner says, from its thread

    def ran(self, version: Version, rows: Sequence[Row], took_s: float, complete: Sequence[Ticket]) -> None:
        """Answers tickets whose rows are all computed, then counts the run; what is slow to finish goes to the pool."""
        quick: list[tuple[Order, Outcome]] = []
        for ticket in complete:
            if self.kind == "detect" and ticket.rows[0].group != "raw":
                self._pool.submit(lambda t: self.settle([(t.order, finished(t, self.name))]), ticket)
            else:
                quick.append((ticket.order, finished(ticket, self.name)))
        sent = self._send_early(*quick[0]) if len(quick) == 1 else None
        self._at_once(self._after_run, quick, sent, version, rows, took_s)

    def _send_early(self, order: Order, outcome: Outcome) -> Waiting | None:
        """Sends an answer off in the owner's thread if nothing else waits for the device; returns who got it."""
        version = order.version
        if not isinstance(outcome, Answer) or version.distrusted or version.lane.has_more():
            return None
        if not any(waiting.early for waiting in order.waiting) or (taken := order.take()) is None:
            return None
        try:
            if taken.early is not None:
                taken.early(outcome)
        except Exception:  # the event loop sends it, or says what is wrong
            _logger.exception("model %s: internal error", self.name)
        return taken

    def _after_run(
        self,
        outcomes: Sequence[tuple[Order, Outcome]],
        sent: Waiting | None,
        version: Version,
        rows: Sequence[Row],
        took_s: float,
    ) -> None:
        if sent is not None:
            self._conclude(outcomes[0][0], sent, outcomes[0][1])
        else:
            self._resolve(outcomes)
        row_s = took_s / len(rows)
        self._row_s = row_s if not self._row_s else (1 - SMOOTH) * self._row_s + SMOOTH * row_s
        version.shortcut.ran(rows, took_s)
        self._observer.ran(self.name, version.loaded.device(), len(rows), took_s)

    def settle(self, outcomes: Sequence[tuple[Order, Outcome]]) -> None:
        """Hands answers and errors to those who wait; called from any thread."""
        self._at_once(self._resolve, outcomes)

    def _at_once(self, function: Callable[..., None], *arguments: Any) -> None:
        """Has something called in the event loop: here and now if that is where we are."""
        if threading.get_ident() == self._thread:
            function(*arguments)
        else:
            self._in_loop(function, *arguments)

    def _in_loop(self, function: Callable[..., None], *arguments: Any) -> None:
        """Has something called in the event loop, in its next turn."""
        with suppress(RuntimeError):  # the loop has ended, and nobody waits
            self._loop.call_soon_threadsafe(function, *arguments)

    def _resolve(self, outcomes: Sequence[tuple[Order, Outcome]]) -> None:
        for order, outcome in outcomes:
            if (waiting := order.take()) is None:
                continue
            if isinstance(outcome, Answer) and order.version.distrusted:
                outcome = DeviceError("the device was found to give wrong answers", "canary")
            self._conclude(order, waiting, outcome)

    def _conclude(self, order: Order, waiting: Waiting, outcome: Outcome) -> None:
        """Counts the outcome of an order and hands it to the one who waits for it."""
        self._waiting -= order.items
        self._orders.discard(order)
        self._release(order.version)
        if not self._waiting:
            self.emptied.set()
        if isinstance(outcome, Answer):
            self.counts.since_good += not outcome.fallback
            self.counts.answered += 1
        elif isinstance(outcome, AnyNpuError):
            self._refuse(outcome, order.request)
        try:
            waiting.then(outcome)
        except Exception:  # a defect in one answer is not to cost the others of its batch theirs
            _logger.exception("model %s: internal error", self.name)
        # After the answer has left: the client need not wait for what is counted.
        if isinstance(outcome, Answer):
            self._observer.answered(self.name, outcome.stages, order.items, outcome.tokens)
        elif isinstance(outcome, AccuracyError):
            self._on_suspect(self)

    def device_lost(self, version: Version, error: AnyNpuError) -> None:
        """Holds what waits for a version until the fleet has opened its session again; called from any thread."""
        served = self._served.get(version)
        if served is not None:
            served.held = True
        self._in_loop(self._on_lost, self, version, error)

    # Life, as the fleet directs it

    def change(self, state: State, reason: str = "") -> None:
        if (state, reason) != (self.state, self.reason):
            self.state, self.reason = state, reason
            self._observer.changed(self.name, state, reason)

    def use(self, version: Version) -> None:
        """Has new requests answered by a version; the one before it ends with its last request."""
        self._serving(version)
        if version.twin:
            before, self.twin = self.twin, version
        else:
            before, self.device = self.device, version
            self.refusing = ""
        if before is not None and before is not version:
            before.retired = True
            if not before.users:
                self.forget(before)

    def renew(self, version: Version, loaded: Loaded) -> None:
        """Puts fresh sessions in the place of lost ones; what was held goes on."""
        version.loaded, version.distrusted = loaded, False
        self.refusing = ""
        served = self._served.get(version)
        if served is not None:
            served.held = False
        version.lane.wake()

    def hold(self, version: Version) -> None:
        self._serving(version).held = True

    def distrust(self, version: Version) -> None:
        """Has nothing more computed by a version whose known answers are wrong; called in its owner's thread."""
        version.distrusted = True
        self._serving(version).held = True

    def note_canary(self, canary: Canary) -> None:
        self.canary, self.checked_at = canary, time.monotonic()
        self._observer.canary(self.name, self.health().canary)

    def stop(self, error: AnyNpuError) -> None:
        """Answers everybody who still waits with an error."""
        self.draining = True
        self.change("stopped")
        self._resolve([(order, error) for order in list(self._orders)])

    def turn_away(self, version: Version | None, error: DeviceError, refuse: bool = True) -> None:
        """Takes no more requests for a device; what waits goes to the twin, or is refused."""
        if refuse:
            self.refusing = error.message
        served = self._served.get(version) if version is not None else None
        if version is None or served is None:
            return

        def take_back() -> None:
            tickets = version.lane.take_back(served)
            self._loop.call_soon_threadsafe(self._redirect, tickets, error)

        version.lane.call(take_back)

    def _redirect(self, tickets: Sequence[Ticket], error: DeviceError) -> None:
        twin = self.twin
        orders: list[Order] = [ticket.order for ticket in tickets if not ticket.order.done]
        if twin is None:
            self._resolve([(order, error) for order in orders])
            return
        for order in orders:
            self._release(order.version)
            order.version = twin
            twin.users += 1
            self._submit(order)

    def info(self) -> Info:
        """Returns what is served now."""
        version = self.device or self.twin
        if version is None:
            raise DeviceError(self.reason or "the model is not loaded", "info")
        return version.info

    def health(self) -> Health:
        age = None if self.checked_at is None else time.monotonic() - self.checked_at
        sent = [order for order in self._orders if order.done]  # by the owner of the device, and not yet counted
        return Health(
            self.state,
            self.reason,
            replace(self.canary, age_s=age, suspect_answers=self.counts.suspect),
            bool(self.twin is not None and self.refusing),
            self._waiting - sum(order.items for order in sent),
            self.counts.answered + len(sent),
            dict(self.counts.refused),
            self.counts.restarts,
            self.counts.reloads,
            self.loosening > 0,
        )
