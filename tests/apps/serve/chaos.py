"""A served NPU that is killed, hung and corrupted in a random order, under 80 % of the load it can take.

    python tests/apps/serve/chaos.py --seconds 600 --seed 1          # the engine, in this process
    python tests/apps/serve/chaos.py --seconds 600 --seed 1 --http   # `anynpu serve` in its own process, through HTTP

The device is the fake libnoe in its worker process, with jobs of 15 ms. Every answer is checked by a computation of its
own. What must hold: kills and hangs never cause a wrong answer; every request is answered, with an error only for those
in flight at a kill, or while a device hangs or is known to lie; corruption is found within one period of the known
answers, nothing wrong leaves after that, and the server states how many may have left before; memory and descriptors
stay flat. Exit status 1 where something does not hold.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import numpy as np
from kept import Kept
from npu_model import OUTPUT, expected, npu_model, stored

from anynpu import schema
from anynpu.apps.serve.base import FleetSettings, Health, ModelSettings, Options, Overloaded, Request
from anynpu.apps.serve.fleet import open_fleet
from anynpu.errors import DeviceError
from anynpu.testing import noe

BINARY = "application/octet-stream"
STORED = Options(stored=True)
SHARE = 0.8
NUMBERS = 50
KINDS = ("kill", "hang", "corrupt")
RUN_LIMIT_S, QUEUE = 1.0, 400


@dataclass(frozen=True)
class Pace:
    """How fast things happen. `slack_s` is what a busy machine may add to the period of the known answers."""

    period_s: float = 5.0
    gap_s: tuple[float, float] = (1.0, 5.0)
    slack_s: float = 0.25
    deadline_s: float = 300.0


class Subject(Protocol):
    """What is broken and asked."""

    pid: int

    async def answer(self, number: int, deadline_s: float) -> np.ndarray:
        """Returns the output for an input; raises DeviceError (503) or Overloaded (429)."""
        ...

    async def health(self) -> Health: ...

    def leave(self) -> None:
        """Closes every connection."""
        ...


class Engine:
    """The serving engine in this process."""

    def __init__(self, fleet) -> None:
        self.pid, self.model = os.getpid(), fleet.models["npu"]

    async def answer(self, number: int, deadline_s: float) -> np.ndarray:
        request = Request(({"x": stored(number)},), STORED, deadline=time.monotonic() + deadline_s)
        return (await self.model.answer(request)).tensors[0]["y"]

    async def health(self) -> Health:
        return self.model.health()

    def leave(self) -> None:
        """There are no connections."""


class Http:
    """`anynpu serve`, asked over HTTP."""

    def __init__(self, pid: int, client: Kept) -> None:
        self.pid, self.client = pid, client

    async def answer(self, number: int, deadline_s: float) -> np.ndarray:
        body, timeout = stored(number).tobytes(), str(deadline_s)
        reply = await self.client.ask("POST", "/infer", body, content_type=BINARY, x_request_timeout=timeout)
        if reply.status == 429:
            raise Overloaded(reply.content.decode(), float(reply.headers["retry-after"]))
        if reply.status == 503:
            raise DeviceError(reply.json()["error"]["message"], "http")
        if reply.status != 200:
            raise ValueError(f"{reply.status}: {reply.content!r}")
        return np.frombuffer(reply.content, OUTPUT.dtype).reshape(OUTPUT.shape)

    async def health(self) -> Health:
        record = (await self.client.ask("GET", "/health")).json()["models"]["npu"]
        record.pop("serving")
        return schema.from_dict(Health, record, "/health")

    def leave(self) -> None:
        self.client.close()


@asynccontextmanager
async def engine(folder: Path, pace: Pace) -> AsyncIterator[Engine]:
    settings = FleetSettings(canary_s=pace.period_s, run_limit_s=RUN_LIMIT_S, queue=QUEUE)
    fleet = open_fleet([ModelSettings("npu", (npu_model(folder / "model").path,))], settings)
    try:
        await fleet.start()
        yield Engine(fleet)
    finally:
        fleet.close()


@asynccontextmanager
async def http(folder: Path, pace: Pace) -> AsyncIterator[Http]:
    flags = ("--canary-every", str(pace.period_s), "--run-limit", str(RUN_LIMIT_S), "--max-queue", str(QUEUE))
    deadline = ("--deadline", str(pace.deadline_s), "--access-log", "none")
    argv = [sys.executable, "-m", "anynpu", "serve", f"npu={npu_model(folder / 'model').path}", *flags, *deadline]
    server = subprocess.Popen([*argv, "--port", "0", "-f", "json"], stdout=subprocess.PIPE, text=True)
    try:
        url = json.loads(server.stdout.readline())["url"]
        yield Http(server.pid, Kept(int(url.rpartition(":")[2])))
    finally:
        server.terminate()
        server.communicate()


@dataclass
class Outcome:
    """What happened in a campaign."""

    seconds: float = 0.0
    limit_per_s: float = 0.0
    issued: int = 0
    outcomes: Counter = field(default_factory=Counter)
    faults: Counter = field(default_factory=Counter)
    suspect: int = 0
    restarts: int = 0
    found_after_s: list = field(default_factory=list)
    violations: list = field(default_factory=list)
    latency_ms: list = field(default_factory=list)
    rss_mb: list = field(default_factory=list)
    descriptors: list = field(default_factory=list)
    most_connections: int = 0
    most_processes: int = 0

    @property
    def wrong(self) -> int:
        return self.outcomes["wrong"]

    def report(self) -> dict:
        ordered = sorted(self.latency_ms) or [0.0]
        return {
            "seconds": round(self.seconds, 1),
            "limit_per_s": round(self.limit_per_s, 1),
            "issued": self.issued,
            "outcomes": dict(self.outcomes),
            "faults": dict(self.faults),
            "restarts": self.restarts,
            "wrong_answers_that_left": self.wrong,
            "suspect_answers_stated": self.suspect,
            "corruption_found_after_s": [round(s, 2) for s in self.found_after_s],
            "latency_ms": {p: round(ordered[int(len(ordered) * p / 100.0001)], 1) for p in (50, 95, 99)},
            "second quarter and last": {
                name: quarters(values) for name, values in (("rss_mb", self.rss_mb), ("files", self.descriptors))
            },
            "most_connections": self.most_connections,
            "most_processes": self.most_processes,
            "violations": self.violations,
        }


def quarters(values: list[float]) -> tuple[float, float]:
    """The medians of the second quarter and of the last."""
    quarter = len(values) // 4
    middle, last = values[quarter : 2 * quarter] or values or [0.0], values[-quarter:] or [0.0]
    return statistics.median(middle), statistics.median(last)


class Campaign:
    """The clients of one server, and whoever breaks its device."""

    def __init__(self, subject: Subject, folder: Path, seed: int, pace: Pace) -> None:
        self.subject, self.random, self.pace = subject, random.Random(seed), pace
        self.spoiled, self.hung = folder / "spoiled", folder / "hung"
        self.outcome = Outcome()
        self.expected = [expected(number) for number in range(NUMBERS)]
        self.broken = ""
        self.first = descriptors(subject.pid)
        self.corruption, self.found = 0, 0
        """The number of the last corruption, and of the one that the server knows of; 0 where it knows of none."""
        self.awake_s = 0.0
        """Time in which this process ran: a machine that stops everything for a while makes no server late."""

    async def run(self, over: Callable[[Outcome], bool]) -> Outcome:
        """Breaks the device until `over` says that it is enough; the fault of that moment is seen to its end."""
        outcome = self.outcome
        outcome.limit_per_s = await self._limit()
        began = time.monotonic()
        watch = asyncio.gather(self._watch(), self._count_time())
        chaos = asyncio.create_task(self._break(over))
        jobs: set[asyncio.Task[None]] = set()
        due = began
        while not chaos.done():
            due += self.random.expovariate(SHARE * outcome.limit_per_s)
            await asyncio.sleep(max(0, due - time.monotonic()))
            outcome.seconds = time.monotonic() - began
            job = asyncio.create_task(self._one(self.random.randrange(NUMBERS)))
            jobs.add(job)
            job.add_done_callback(jobs.discard)
        await chaos
        await asyncio.wait_for(asyncio.gather(*jobs), 2 * self.pace.deadline_s)
        watch.cancel()
        with suppress(asyncio.CancelledError):
            await watch
        await self._close()
        return outcome

    async def _limit(self) -> float:
        """Returns how many requests a second are answered when there is always one waiting."""
        began, count = time.monotonic(), 0

        async def client() -> None:
            nonlocal count
            while count < 80:
                await self.subject.answer(count % NUMBERS, self.pace.deadline_s)
                count += 1

        await asyncio.gather(*(client() for _ in range(4)))
        return count / (time.monotonic() - began)

    async def _one(self, number: int) -> None:
        outcome, found, began = self.outcome, self.found, time.monotonic()
        outcome.issued += 1
        try:
            output = await self.subject.answer(number, self.pace.deadline_s)
        except DeviceError as error:
            flight = "while it computed" in error.message
            away = "wrong answers" in error.message or "restarted" in error.message
            what = "in flight" if flight else "away" if away else "other"
            outcome.outcomes[f"503 {what}, {self.broken or 'after a fault'}"] += 1
            if away and self.broken in ("kill", "hang"):
                outcome.violations.append(f"a {self.broken} cost a request that was not in flight: {error.message}")
            if not flight and not away:
                outcome.violations.append(f"an error that says nothing: {error.message}")
            return
        except Overloaded:
            outcome.outcomes["429"] += 1
            return
        except Exception as error:
            outcome.outcomes[type(error).__name__] += 1
            outcome.violations.append(f"{type(error).__name__}: {error}")
            return
        outcome.latency_ms.append((time.monotonic() - began) * 1e3)
        right = np.array_equal(output, self.expected[number])
        outcome.outcomes["right" if right else "wrong"] += 1
        if not right and found and found == self.corruption:  # a request that waited long may have met the next one
            outcome.violations.append("a wrong answer after the corruption was found")
        if not right and self.broken != "corrupt":
            outcome.violations.append(f"a wrong answer without corruption ({self.broken or 'nothing broken'})")

    async def _break(self, over: Callable[[Outcome], bool]) -> None:
        for fault in self._faults():
            await asyncio.sleep(self.random.uniform(*self.pace.gap_s))
            if over(self.outcome):
                return
            self.broken = fault
            await getattr(self, f"_{fault}")()
            await self._until(lambda health: health.state == "ready", "ready again")
            await self._answered_right()
            self.outcome.faults[fault] += 1
            self.broken, self.found = "", 0

    def _faults(self) -> Iterator[str]:
        """Every kind once, in a random order, again and again."""
        while True:
            yield from self.random.sample(KINDS, len(KINDS))

    async def _kill(self) -> None:
        before = (await self.subject.health()).restarts
        for worker in workers(self.subject.pid):
            with suppress(ProcessLookupError):
                os.kill(worker, signal.SIGKILL)
        await self._until(lambda health: health.restarts > before, "restarted after a kill")

    async def _hang(self) -> None:
        """Hangs until the device is given up, or for a moment that may be too short for that."""
        before = (await self.subject.health()).restarts
        self.hung.touch()
        if not self.outcome.faults["hang"] or self.random.random() < 0.5:
            await self._until(lambda health: health.restarts > before, "restarted after a hang")
        else:
            await asyncio.sleep(self.random.uniform(0.05, RUN_LIMIT_S))
        self.hung.unlink()

    async def _corrupt(self) -> None:
        began = self.awake_s
        self.corruption += 1
        self.spoiled.touch()
        health = await self._until(lambda health: health.state == "degraded", "known to be degraded")
        self.found = self.corruption
        took_s = max(0.0, self.awake_s - (health.canary.age_s or 0.0) - began)
        self.outcome.found_after_s.append(took_s)
        if took_s > self.pace.period_s + self.pace.slack_s:
            self.outcome.violations.append(f"corruption was found after {took_s:.1f} s")
        await asyncio.sleep(self.random.uniform(0.2, 2.0))
        self.spoiled.unlink()

    async def _until(self, seen: Callable[[Health], bool], what: str) -> Health:
        """Returns the first health that shows what is waited for."""
        end = self.awake_s + 60 + self.pace.slack_s
        while True:
            health = await self.subject.health()
            if seen(health):
                return health
            if self.awake_s > end:
                self.outcome.violations.append(f"not {what} in time: {health}")
                return health
            await asyncio.sleep(0.02)

    async def _answered_right(self) -> None:
        """Waits for an answer of one's own: then nothing that was asked before is still on the device."""
        end = time.monotonic() + 60 + self.pace.slack_s
        while time.monotonic() < end:
            try:
                output = await self.subject.answer(0, self.pace.deadline_s)
            except (DeviceError, Overloaded):
                await asyncio.sleep(0.05)
                continue
            if np.array_equal(output, self.expected[0]):
                return
            self.outcome.violations.append(f"a wrong answer after {self.broken} was over")
        self.outcome.violations.append(f"no answer after {self.broken} was over")

    async def _count_time(self) -> None:
        last = time.monotonic()
        while True:
            await asyncio.sleep(0.02)
            now = time.monotonic()
            self.awake_s, last = self.awake_s + min(now - last, 0.25), now

    async def _watch(self) -> None:
        pid, outcome = self.subject.pid, self.outcome
        while True:
            pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
            outcome.rss_mb.append(pages * 4096 / 1e6)
            found = descriptors(pid)
            outcome.descriptors.append(found.files)
            outcome.most_connections = max(outcome.most_connections, found.connections)
            outcome.most_processes = max(outcome.most_processes, 1 + len(children(pid)))
            await asyncio.sleep(1)

    async def _close(self) -> None:
        outcome, health = self.outcome, await self.subject.health()
        outcome.suspect, outcome.restarts = health.canary.suspect_answers, health.restarts
        answered = sum(outcome.outcomes.values())
        if answered != outcome.issued:
            outcome.violations.append(f"{outcome.issued - answered} requests were never answered")
        # Of those that left since the last good check some were computed before the corruption began.
        since_s = self.pace.period_s + self.pace.slack_s + 2
        most = outcome.wrong + outcome.faults["corrupt"] * since_s * outcome.limit_per_s
        if not outcome.wrong <= outcome.suspect <= most:
            outcome.violations.append(f"{outcome.suspect} suspect answers are stated, {outcome.wrong} were wrong")
        await self._left()
        for name, values, slack in (("MB", outcome.rss_mb, 15), ("descriptors", outcome.descriptors, 3)):
            before, after = quarters(values)
            if len(values) >= 20 and after > before + slack:
                outcome.violations.append(f"{before:.0f} {name} became {after:.0f}")

    async def _left(self) -> None:
        """Closes every connection and waits for the server to do the same, and to hold no more than at the start."""
        self.subject.leave()
        end = time.monotonic() + 60 + self.pace.slack_s
        while (now := descriptors(self.subject.pid)).connections > self.first.connections:
            await asyncio.sleep(0.05)
            if time.monotonic() > end:
                break
        if now.connections > self.first.connections or now.files > self.first.files + 3:
            self.outcome.violations.append(f"{self.first} at the start, {now} after the last client had left")


@dataclass(frozen=True)
class Descriptors:
    """The open descriptors of a process: TCP sockets, and everything else."""

    connections: int
    files: int


def descriptors(pid: int) -> Descriptors:
    tables = [Path(f"/proc/{pid}/net/{name}").read_text().splitlines()[1:] for name in ("tcp", "tcp6")]
    tcp = {f"socket:[{line.split()[9]}]" for table in tables for line in table}
    names = []
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(OSError):  # one that has just been closed
            names.append(str(entry.readlink()))
    connections = sum(name in tcp for name in names)
    return Descriptors(connections, len(names) - connections)


def children(pid: int) -> list[int]:
    found = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        with suppress(OSError):  # a thread that has just ended
            found += [int(child) for child in (task / "children").read_text().split()]
    return found


def workers(pid: int) -> list[int]:
    """The processes that hold the device."""
    found = []
    for child in children(pid):
        with suppress(OSError):
            found += [child] * (b"noe.worker" in Path(f"/proc/{child}/cmdline").read_bytes())
    return found


def campaign(
    over: Callable[[Outcome], bool], seed: int, library: Path, pace: Pace | None = None, through_http: bool = False
) -> Outcome:
    """Returns what happened to a served NPU that was broken until `over` said that it was enough."""
    folder = Path(tempfile.mkdtemp(prefix="anynpu-chaos-"))
    chosen = pace or Pace()

    async def run() -> Outcome:
        async with (http if through_http else engine)(folder, chosen) as subject:
            return await Campaign(subject, folder, seed, chosen).run(over)

    try:
        with noe.switches(library, DELAY_US=15_000, SPOILED=folder / "spoiled", HUNG=folder / "hung"):
            return asyncio.run(run())
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--http", action="store_true", help="break a server in its own process, and ask it by HTTP")
    given = parser.parse_args()

    def over(outcome: Outcome) -> bool:
        return outcome.seconds >= given.seconds

    with tempfile.TemporaryDirectory(prefix="anynpu-chaos-lib-") as name:
        outcome = campaign(over, given.seed, noe.build_fake(Path(name)), through_http=given.http)
    print(json.dumps(outcome.report(), indent=1))
    return 1 if outcome.violations else 0


if __name__ == "__main__":
    sys.exit(main())
