"""A served NPU that is killed, hung and corrupted at random, under 80 % of the load it can take.

    python tests/robustness/serve_chaos.py --seconds 600 --seed 1

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
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

sys.path.append(str(Path(__file__).parents[1] / "serve"))
from npu_model import expected, npu_model, stored

from anynpu.apps.serve.base import FleetSettings, ModelSettings, Options, Overloaded, Request
from anynpu.apps.serve.fleet import open_fleet
from anynpu.errors import DeviceError
from anynpu.testing import noe

STORED = Options(stored=True)
SHARE = 0.8
NUMBERS = 50


@dataclass
class Outcome:
    """What happened in a campaign."""

    seconds: float
    limit_per_s: float = 0.0
    issued: int = 0
    outcomes: Counter = field(default_factory=Counter)
    faults: Counter = field(default_factory=Counter)
    wrong: int = 0
    suspect: int = 0
    found_after_s: list = field(default_factory=list)
    violations: list = field(default_factory=list)
    latency_ms: list = field(default_factory=list)
    rss_mb: list = field(default_factory=list)
    descriptors: list = field(default_factory=list)
    cpu_s: float = 0.0

    def report(self) -> dict:
        quarter = max(1, len(self.rss_mb) // 4)
        flat = {
            name: [statistics.median(values[quarter : 2 * quarter] or values), statistics.median(values[-quarter:])]
            for name, values in (("rss_mb", self.rss_mb), ("descriptors", self.descriptors))
            if values
        }
        ordered = sorted(self.latency_ms) or [0.0]
        return {
            "seconds": self.seconds,
            "limit_per_s": round(self.limit_per_s, 1),
            "issued": self.issued,
            "outcomes": dict(self.outcomes),
            "faults": dict(self.faults),
            "wrong_answers_that_left": self.wrong,
            "suspect_answers_stated": self.suspect,
            "corruption_found_after_s": [round(s, 2) for s in self.found_after_s],
            "latency_ms": {p: round(ordered[int(len(ordered) * p / 100.0001)], 1) for p in (50, 95, 99)},
            "second quarter and last": flat,
            "cpu_s": round(self.cpu_s, 1),
            "violations": self.violations,
        }


class Campaign:
    """One server, its clients, and whoever breaks the device."""

    def __init__(
        self, folder: Path, seconds: float, seed: int, period_s: float, gap_s: tuple[float, float], slack_s: float
    ) -> None:
        self.slack_s = slack_s
        self.folder, self.random, self.period_s, self.gap_s = folder, random.Random(seed), period_s, gap_s
        self.spoiled, self.hung = folder / "spoiled", folder / "hung"
        self.outcome = Outcome(seconds)
        self.expected = [expected(number) for number in range(NUMBERS)]
        self.broken = ""
        self.ended = False

    async def run(self) -> Outcome:
        artifact = npu_model(self.folder / "model")
        settings = FleetSettings(canary_s=self.period_s, run_limit_s=1.0, queue=400)
        self.fleet = open_fleet([ModelSettings("npu", (artifact.path,))], settings)
        await self.fleet.start()
        self.model = self.fleet.models["npu"]
        try:
            self.outcome.limit_per_s = await self._limit()
            began, cpu = time.monotonic(), sum(os.times()[:4])
            chaos = asyncio.create_task(self._break())
            watch = asyncio.create_task(self._watch())
            jobs = set()
            gap = 1 / (SHARE * self.outcome.limit_per_s)
            due = began
            while time.monotonic() < began + self.outcome.seconds:
                due += self.random.expovariate(1 / gap)
                await asyncio.sleep(max(0, due - time.monotonic()))
                job = asyncio.create_task(self._one(self.random.randrange(NUMBERS)))
                jobs.add(job)
                job.add_done_callback(jobs.discard)
            self.ended = True
            await chaos
            pending = asyncio.gather(*jobs)
            await asyncio.wait_for(pending, 60)
            watch.cancel()
            self.outcome.cpu_s = sum(os.times()[:4]) - cpu
            self._close()
        finally:
            self.fleet.close()
        return self.outcome

    async def _limit(self) -> float:
        """Returns how many requests a second are answered when there is always one waiting."""
        count, end = 0, time.monotonic() + 2

        async def client() -> None:
            nonlocal count
            while time.monotonic() < end:
                await self.model.answer(Request(({"x": stored(count % NUMBERS)},), STORED))
                count += 1

        await asyncio.gather(*(client() for _ in range(4)))
        return count / 2

    async def _one(self, number: int) -> None:
        self.outcome.issued += 1
        degraded = self.model.health().state == "degraded"
        began = time.monotonic()
        try:
            answer = await self.model.answer(Request(({"x": stored(number)},), STORED, deadline=began + 30))
        except DeviceError as error:
            flight = "while it computed" in error.message
            away = "wrong answers" in error.message or "restarted" in error.message
            what = "in flight" if flight else "away" if away else "other"
            self.outcome.outcomes[f"503 {what}, {self.broken or 'after a fault'}"] += 1
            if away and self.broken == "kill":
                self.outcome.violations.append(f"a kill cost a request that was not in flight: {error.message}")
            if not flight and not away:
                self.outcome.violations.append(f"an error that says nothing: {error.message}")
            return
        except Overloaded:
            self.outcome.outcomes["429"] += 1
            return
        except Exception as error:
            self.outcome.outcomes[type(error).__name__] += 1
            self.outcome.violations.append(f"{type(error).__name__}: {error}")
            return
        self.outcome.latency_ms.append((time.monotonic() - began) * 1e3)
        right = np.array_equal(answer.tensors[0]["y"], self.expected[number])
        self.outcome.outcomes["right" if right else "wrong"] += 1
        if not right:
            self.outcome.wrong += 1
            if degraded:
                self.outcome.violations.append("a wrong answer after the corruption was found")
            if self.broken != "corrupt":
                self.outcome.violations.append(f"a wrong answer without corruption ({self.broken or 'nothing broken'})")

    async def _break(self) -> None:
        while not self.ended:
            await asyncio.sleep(self.random.uniform(*self.gap_s))
            if self.ended:
                return
            fault = self.random.choice(("kill", "hang", "corrupt"))
            self.outcome.faults[fault] += 1
            self.broken = fault
            await getattr(self, f"_{fault}")()
            await self._settled("ready", 60)
            await asyncio.sleep(0.2)  # answers that were computed before are on their way
            self.broken = ""

    async def _kill(self) -> None:
        worker = self.model.device.loaded.sessions[0]._engine
        if worker is not None and not worker.lost:
            os.kill(worker.worker, signal.SIGKILL)
        await asyncio.sleep(0.5)

    async def _hang(self) -> None:
        self.hung.touch()
        await asyncio.sleep(self.random.uniform(0.05, 2.0))
        self.hung.unlink()
        await asyncio.sleep(2.5)  # one that began before has run into its limit by then

    async def _corrupt(self) -> None:
        self.spoiled.touch()
        began = time.monotonic()
        try:
            await self._settled("degraded", 10 * self.period_s)
            self.outcome.found_after_s.append(time.monotonic() - began)
            if time.monotonic() - began > self.period_s + self.slack_s:
                self.outcome.violations.append(f"corruption was found after {time.monotonic() - began:.1f} s")
            await asyncio.sleep(self.random.uniform(0.2, 2.0))
        finally:
            self.spoiled.unlink()

    async def _settled(self, state: str, limit_s: float) -> None:
        end = time.monotonic() + limit_s
        while self.model.health().state != state:
            if time.monotonic() > end:
                self.outcome.violations.append(f"not {state} within {limit_s:g} s: {self.model.health()}")
                return
            await asyncio.sleep(0.01)

    async def _watch(self) -> None:
        while True:
            pids = [os.getpid(), *_children(os.getpid())]
            pages = int(Path("/proc/self/statm").read_text().split()[1])
            self.outcome.rss_mb.append(pages * 4096 / 1e6)
            self.outcome.descriptors.append(sum(1 for _ in Path("/proc/self/fd").iterdir()))
            self.outcome.outcomes["most processes"] = max(self.outcome.outcomes["most processes"], len(pids))
            await asyncio.sleep(1)

    def _close(self) -> None:
        outcome, health = self.outcome, self.model.health()
        outcome.suspect = health.canary.suspect_answers
        answered = sum(n for what, n in outcome.outcomes.items() if what != "most processes")
        if answered != outcome.issued:
            outcome.violations.append(f"{outcome.issued - answered} requests were never answered")
        corrupted = outcome.faults["corrupt"]
        # Of those that left since the last good check some were computed before the corruption began.
        most = outcome.wrong + corrupted * (self.period_s + 2) * outcome.limit_per_s
        if not outcome.wrong <= outcome.suspect <= most:
            outcome.violations.append(f"{outcome.suspect} suspect answers are stated, {outcome.wrong} were wrong")
        for name, values, slack in (("MB", outcome.rss_mb, 15), ("descriptors", outcome.descriptors, 6)):
            quarter = len(values) // 4
            if quarter >= 5:
                before, after = (statistics.median(v) for v in (values[quarter : 2 * quarter], values[-quarter:]))
                if after > before + slack:
                    outcome.violations.append(f"{before:.0f} {name} became {after:.0f}")


def _children(pid: int) -> list[int]:
    found = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        found += [int(child) for child in (task / "children").read_text().split()]
    return found


def campaign(
    seconds: float,
    seed: int,
    library: Path,
    period_s: float = 5.0,
    gap_s: tuple[float, float] = (1.0, 5.0),
    slack_s: float = 1.5,
) -> Outcome:
    """Returns what happened to a served NPU that was broken at random for so long.

    `slack_s` is what a busy machine may add to the period of the known answers.
    """
    folder = Path(tempfile.mkdtemp(prefix="anynpu-chaos-"))
    try:
        with noe.switches(library, DELAY_US=15_000, SPOILED=folder / "spoiled", HUNG=folder / "hung"):
            return asyncio.run(Campaign(folder, seconds, seed, period_s, gap_s, slack_s).run())
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="anynpu-chaos-lib-") as name:
        outcome = campaign(given.seconds, given.seed, noe.build_fake(Path(name)))
    print(json.dumps(outcome.report(), indent=1))
    return 1 if outcome.violations else 0


if __name__ == "__main__":
    sys.exit(main())
