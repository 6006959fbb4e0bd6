"""The load generator over HTTP: open loop (arrivals wait for nothing) and closed loop (N connections).

Open loop: every request has a moment at which it should be sent, and its latency counts from there. It is sent then,
over an idle connection or a new one; where the limit of connections is reached it waits here, and that is latency too.
A server that stalls is therefore seen by every request that arrived meanwhile (no coordinated omission).

Closed loop: each connection sends its next request when the last one is answered. That gives the throughput at N
connections; a stall is one slow request, so its percentiles say nothing about requests that arrive on their own.
"""

from __future__ import annotations

import asyncio
import selectors
import zlib
from collections import Counter, deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from anynpu.errors import DeviceError
from anynpu.measure.timer import clock
from anynpu.measure.web.address import Address
from anynpu.measure.web.exchange import CLOSED, REFUSED, TIMED_OUT, Answer, Exchange

Ended = Callable[[int, float], str]
"""(requests, seconds) -> why a loop may end now, or an empty string."""
PAUSE_S = 0.05
LOOK_S = 0.02
KEPT_BYTES = 64 * 1024 * 1024
"""Distinct answers are kept for the checks up to this size; bytes that were seen before cost nothing."""
SELECT_LIMIT = 900
"""select() serves file numbers under 1024; its timers are fine, those of epoll have steps of 1 ms."""


@dataclass(frozen=True)
class Plan:
    """What to send where. `schedule` (nanoseconds from the start) makes it an open loop, `until` ends a closed one."""

    address: Address
    requests: Sequence[bytes]
    connections: int
    timeout_s: float
    schedule: Sequence[int] | None = None
    until: Ended | None = None
    give_up: int = 20
    """After this many refused connections in a row, and none in between that was taken, the server is gone."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """One request: when it was due, sent, answered; what became of it; which answer it got (-1: not kept)."""

    payload: int
    due: int
    sent: int
    first: int
    last: int
    outcome: int | str
    answer: int = -1


@dataclass
class Traffic:
    """Everything that a run saw."""

    start: int = 0
    attempts: list[Attempt] = field(default_factory=list)
    answers: list[tuple[int, Answer]] = field(default_factory=list)
    """The distinct answers, each with the number of its payload."""
    late: list[int] = field(default_factory=list)
    """How long after its time each request was taken up by this program (open loop)."""
    opened: int = 0
    most_busy: int = 0
    retried: int = 0
    """Requests sent again because the server closed an idle connection at that moment."""
    ended: str = ""
    scheduled: int | None = None
    error: DeviceError | None = None
    _kept_bytes: int = 0
    _numbers: dict[tuple[int, int, int], int] = field(default_factory=dict)

    @property
    def outcomes(self) -> Counter[str]:
        return Counter(str(attempt.outcome) for attempt in self.attempts)

    def keep(self, payload: int, answer: Answer) -> int:
        """Returns the number of this answer among the distinct ones."""
        key = (payload, answer.status, zlib.crc32(answer.body))
        number = self._numbers.get(key)
        if number is None and self._kept_bytes + len(answer.body) <= KEPT_BYTES:
            number = self._numbers[key] = len(self.answers)
            self.answers.append((payload, answer))
            self._kept_bytes += len(answer.body)
        return -1 if number is None else number


class Generator:
    """Sends the requests of a plan; one run of one event loop."""

    def __init__(self, plan: Plan, traffic: Traffic) -> None:
        self.plan, self.traffic = plan, traffic
        self._idle: list[Exchange] = []
        self._all: set[Exchange] = set()
        self._opening = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self._waiting: deque[tuple[int, int, int]] = deque()
        """(due, payload, tries) of requests for which there is no connection yet."""
        self._next = 0
        self._refused = 0
        self._tls = plan.address.tls
        self._timeout_ns = round(plan.timeout_s * 1e9)
        self._exhausted = False

    async def run(self) -> None:
        """Returns when every request is answered or given up."""
        self._loop, self._done = asyncio.get_running_loop(), asyncio.Event()
        self.traffic.start = clock()
        look = self._loop.call_later(LOOK_S, self._look)
        try:
            if self.plan.schedule is None:
                for _ in range(self.plan.connections):
                    self._open()
            else:
                self.traffic.scheduled = len(self.plan.schedule)
                self._arrive()
            await self._done.wait()
        finally:
            look.cancel()
            for task in self._tasks:
                task.cancel()
            for exchange in tuple(self._all):
                exchange.close()
            await asyncio.sleep(0)

    def _arrive(self) -> None:
        """Takes up every request that is due and sets the timer for the next."""
        schedule = self.plan.schedule
        assert schedule is not None
        while self._next < len(schedule):
            due = self.traffic.start + schedule[self._next]
            now = clock()
            if due > now:
                self._loop.call_later((due - now) / 1e9, self._arrive)
                return
            self.traffic.late.append(now - due)
            self._submit(due, self._next % len(self.plan.requests), 0)
            self._next += 1
        self._exhausted = True
        self._maybe_done()

    def _submit(self, due: int, payload: int, tries: int) -> None:
        """Sends a request over an idle connection, opens a new one for it, or lets it wait."""
        while self._idle:
            exchange = self._idle.pop()
            if exchange.usable:
                self._send(exchange, due, payload, tries)
                return
        self._waiting.append((due, payload, tries))
        if len(self._all) + self._opening < self.plan.connections and self._opening < len(self._waiting):
            self._open()

    def _send(self, exchange: Exchange, due: int, payload: int, tries: int) -> None:
        exchange.due, exchange.payload, exchange.tries = due, payload, tries
        exchange.send(self.plan.requests[payload])
        busy = len(self._all) - len(self._idle)
        self.traffic.most_busy = max(self.traffic.most_busy, busy)

    def _open(self) -> None:
        self._opening += 1
        task = self._loop.create_task(self._connect())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _connect(self) -> None:
        exchange, address = Exchange(self._ended, self._gone), self.plan.address
        try:
            async with asyncio.timeout(self.plan.timeout_s):
                named = address.host if self._tls else None
                await self._loop.create_connection(
                    lambda: exchange, address.host, address.port, ssl=self._tls, server_hostname=named
                )
        except (OSError, TimeoutError) as error:  # ssl.SSLError and a failed look-up of the name are OSErrors
            self._opening -= 1
            now = clock()
            due, payload, _ = self._waiting.popleft() if self._waiting else (now, 0, 0)
            self.traffic.attempts.append(Attempt(payload, due, now, now, now, REFUSED))
            self._refused += 1
            if self._refused >= self.plan.give_up:
                why = "no answer in time" if isinstance(error, TimeoutError) else str(error) or type(error).__name__
                self.traffic.error = DeviceError(
                    f"{self.plan.address}: {why}", call="connect", cause="the server is not there, or it went away"
                )
                self._done.set()
            self._maybe_done()
            if self.plan.schedule is None and not self._done.is_set():
                await asyncio.sleep(PAUSE_S)
                self._open()
            return
        self._opening -= 1
        self._refused = 0
        self.traffic.opened += 1
        self._all.add(exchange)
        self._proceed(exchange)

    def _proceed(self, exchange: Exchange) -> None:
        """Gives a connection that is free its next request."""
        if not exchange.usable:
            closed_goes_on = self.plan.schedule is None and not self._over()
            if closed_goes_on or self._opening < len(self._waiting):
                self._open()
            self._maybe_done()
        elif self._waiting:
            self._send(exchange, *self._waiting.popleft())
        elif self.plan.schedule is not None:
            self._idle.append(exchange)
            self._maybe_done()
        elif not self._over():
            self._send(exchange, clock(), self._next % len(self.plan.requests), 0)
            self._next += 1
        else:
            self._maybe_done()

    def _over(self) -> bool:
        """Says whether a closed loop has sent enough."""
        if not self._exhausted and self.plan.until is not None:
            self.traffic.ended = self.plan.until(self._next, (clock() - self.traffic.start) / 1e9)
            self._exhausted = bool(self.traffic.ended)
        return self._exhausted

    def _maybe_done(self) -> None:
        if self._exhausted and not self._waiting and not any(exchange.busy for exchange in self._all):
            self._done.set()

    def _ended(self, exchange: Exchange, answer: Answer | str) -> None:
        due, payload, sent = exchange.due, exchange.payload, exchange.sent
        if isinstance(answer, Answer):
            kept = self.traffic.keep(payload, answer)
            self.traffic.attempts.append(Attempt(payload, due, sent, answer.first, answer.last, answer.status, kept))
        elif answer == CLOSED and exchange.answers and not exchange.begun and exchange.tries == 0:
            self.traffic.retried += 1
            self._submit(due, payload, 1)
        else:
            now = clock()
            self.traffic.attempts.append(Attempt(payload, due, sent, now, now, answer))
        self._proceed(exchange)

    def _gone(self, exchange: Exchange) -> None:
        self._all.discard(exchange)
        with suppress(ValueError):
            self._idle.remove(exchange)
        if self._waiting and len(self._all) + self._opening < self.plan.connections:
            self._open()
        self._maybe_done()

    def _look(self) -> None:
        """Gives up what has waited too long, for a connection or for an answer."""
        oldest = clock() - self._timeout_ns
        while self._waiting and self._waiting[0][0] < oldest:
            due, payload, _ = self._waiting.popleft()
            now = clock()
            self.traffic.attempts.append(Attempt(payload, due, now, now, now, TIMED_OUT))
        for exchange in tuple(self._all):
            if exchange.busy and exchange.sent < oldest:
                exchange.finish(TIMED_OUT)
        self._maybe_done()
        if not self._done.is_set():
            self._loop.call_later(LOOK_S, self._look)


def event_loop(open_loop: bool, connections: int) -> asyncio.AbstractEventLoop:
    """Returns the loop with the finest timers for arrivals, and the quickest one where no timer matters."""
    if open_loop and connections <= SELECT_LIMIT:
        return asyncio.SelectorEventLoop(selectors.SelectSelector())
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()


def generate(plan: Plan, traffic: Traffic | None = None) -> Traffic:
    """Returns what a plan's requests met; an interruption leaves what was measured in `traffic`."""
    traffic = Traffic() if traffic is None else traffic
    open_loop = plan.schedule is not None
    with asyncio.Runner(loop_factory=lambda: event_loop(open_loop, plan.connections)) as runner:
        runner.run(Generator(plan, traffic).run())
    if open_loop and not traffic.ended:
        traffic.ended = "enough"
    traffic.attempts.sort(key=lambda attempt: attempt.due)
    return traffic
