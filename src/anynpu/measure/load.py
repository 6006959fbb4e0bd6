"""The load generator: four scenarios in the manner of MLPerf LoadGen over anything that can be called.

    single-stream   the next query follows the answer to the last; the latency of each
    multi-stream    a query holds several samples; its latency is that of the slowest, which is the last
    server          queries arrive at random (Poisson); latency counts from the scheduled arrival, so queueing counts
    offline         all samples at once, in blocks without a pause; samples a second

Nothing here knows a model. Only the call is timed: checks and looks at the machine happen between calls, counters are
read before the first and after the last. Throughput is what was done by the clock on the wall.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from anynpu.errors import AnyNpuError, ConfigError, DeviceError
from anynpu.measure import host, stats
from anynpu.measure.energy import Meter, Reading
from anynpu.measure.subject import RUN, Subject
from anynpu.measure.timer import Timer, calibrate, clock
from anynpu.records.host import Machine, Used

SINGLE, MULTI, SERVER, OFFLINE = "single-stream", "multi-stream", "server", "offline"
SCENARIOS = (SINGLE, MULTI, SERVER, OFFLINE)
MAX_COUNT = 100_000
BLOCK_NS = 50_000_000
PROBES = 5
SLOW_NS = 200_000_000
"""A first call this slow needs no batches, and is not asked again to find that out."""
STABLE, WINDOWS, WINDOW_RUNS, WINDOW_NS = 0.02, 3, 5, 10_000_000
"""Warm: the median of a window differs by less than 2 % from the last, three windows in a row."""


@dataclass(frozen=True)
class Settings:
    """What to do, and when it is enough. `runs` is an exact number and overrules times and counts."""

    scenario: str = SINGLE
    min_time_s: float = 3.0
    min_count: int = 100
    max_time_s: float = 60.0
    runs: int | None = None
    warm_up: int | None = None
    """An exact number of runs; until stable if None."""
    warm_up_cap_s: float = 5.0
    streams: int = 8
    qps: float | None = None
    bound_ms: float | None = None
    percentile: float = 99.0
    seed: int = 0
    idle_s: float = 2.0

    def __post_init__(self) -> None:
        if self.scenario not in SCENARIOS:
            raise ConfigError(f"no such scenario: {self.scenario}", "known: " + ", ".join(SCENARIOS))
        if self.scenario != SERVER:
            for flag, value in (("--qps", self.qps), ("--bound", self.bound_ms)):
                if value is not None:
                    raise ConfigError(
                        f"{flag} belongs to the scenario server, not {self.scenario}", "--scenario server"
                    )
        elif self.qps is None:
            raise ConfigError("the scenario server needs the queries a second to send", "give --qps")
        elif not (math.isfinite(self.qps) and self.qps > 0):
            raise ConfigError(f"--qps {self.qps:g}: a number above zero was expected")
        elif self.bound_ms is not None and not (math.isfinite(self.bound_ms) and self.bound_ms > 0):
            raise ConfigError(f"--bound {self.bound_ms:g}: a number of milliseconds above zero was expected")
        elif not 0 < self.percentile < 100:
            raise ConfigError(f"--percentile {self.percentile:g}: a number between 0 and 100 was expected")
        for name in ("min_time_s", "max_time_s", "warm_up_cap_s", "idle_s"):
            if not (math.isfinite(getattr(self, name)) and getattr(self, name) >= 0):
                raise ConfigError(f"{name} {getattr(self, name)}: a number of seconds was expected")
        if self.max_time_s < self.min_time_s or self.max_time_s == 0:
            raise ConfigError(f"a maximum of {self.max_time_s:g} s is under the minimum of {self.min_time_s:g} s")
        if self.min_count < 1 or self.streams < 1 or (self.runs is not None and self.runs < 1):
            raise ConfigError("at least one run is needed")

    def for_verdict(self) -> Settings:
        """Returns settings whose minimum number of queries supports the percentile that the bound is for."""
        if self.bound_ms is None or self.runs is not None:
            return self
        return replace(self, min_count=max(self.min_count, stats.needed(self.percentile / 100)))

    def ended(self, count: int, seconds: float) -> str:
        """Returns why a loop may end now: "enough", "maximum time", "maximum count", or "" to go on."""
        if self.runs is not None:
            return "enough" if count >= self.runs else ""
        if count >= self.min_count and seconds >= self.min_time_s:
            return "enough"
        if count and seconds >= self.max_time_s:
            return "maximum time"
        return "maximum count" if count >= max(MAX_COUNT, self.min_count) else ""


@dataclass
class Trace:
    """The raw samples of one loop. A timing holds `per` calls; `mean` says that a sample is a call's share of it."""

    per: int = 1
    mean: bool = False
    began: list[int] = field(default_factory=list)
    elapsed: list[int] = field(default_factory=list)
    stages: dict[str, list[int]] = field(default_factory=dict)
    start: int = 0
    ended: str = ""
    queries: int | None = None
    """How many were to be answered, where that is known before (server)."""
    arrived_per_s: float = 0.0
    late: list[int] = field(default_factory=list)
    """How long after its scheduled time each query was sent (server)."""

    def add(self, began: int, ended: int, parts: dict[str, int]) -> None:
        """Keeps one timing."""
        self.began.append(began)
        self.elapsed.append(ended - began)
        for name, spent in parts.items():
            self.stages.setdefault(name, []).append(spent)

    def trim(self) -> None:
        """Drops what an interruption left of a half-kept timing."""
        lists = (self.began, self.elapsed, *self.stages.values())
        whole = min(len(values) for values in lists)
        for values in lists:
            del values[whole:]

    @property
    def calls(self) -> int:
        return self.per * len(self.began)

    def samples_ms(self) -> list[float]:
        """Returns the latencies, in the order of their start."""
        share = self.per if self.mean else 1
        return [round(spent / share / 1e6, 7) for spent in self.elapsed]

    def wall_s(self) -> float:
        """Returns the seconds from the start to the end of the last call, with everything that lies between calls."""
        ends = [began + spent for began, spent in zip(self.began, self.elapsed, strict=False)]
        return max(0, max(ends, default=self.start) - self.start) / 1e9

    def started_s(self) -> list[float]:
        return [round((at - self.start) / 1e9, 7) for at in self.began]


@dataclass(frozen=True)
class WarmUp:
    """How it went; `stable` is None where a number of runs was asked for."""

    runs: int
    seconds: float
    stable: bool | None
    change: float | None = None
    """The last change of the rolling median."""


@dataclass
class Result:
    """A finished or broken-off measurement; `error` says what broke it off."""

    what: str
    scope: str
    settings: Settings
    timer: Timer
    load_ns: int
    first_ns: int
    warm_up: WarmUp
    trace: Trace
    watch: host.Watch
    used: Used
    outputs: Mapping[str, object]
    machine: Machine
    error: BaseException | None = None
    reading: Reading | None = None
    idle: Reading | None = None
    energy_error: AnyNpuError | None = None


Tell = Callable[[str, float], None]
Ended = Callable[[int, float], str]
"""(samples, seconds) -> why a loop may end now, or an empty string."""


def _silent(stage: str, seconds: float) -> None:
    return


def query(subject: Subject, per: int) -> Callable[[], list[Any]]:
    """Returns a function that makes `per` calls and gives their results."""
    call = subject.call
    return lambda: [call() for _ in range(per)]


def timed(subject: Subject, per: int = 1) -> int:
    """Returns the nanoseconds of one checked timing."""
    call = subject.call if per == 1 else query(subject, per)
    began = clock()
    result = call()
    spent = clock() - began
    for each in (result,) if per == 1 else result:
        subject.check(each)
    return spent


def warm_up(subject: Subject, per: int, settings: Settings) -> WarmUp:
    """Runs until the rolling median is stable, a cap is reached, or a given number of runs is done."""
    began = clock()
    if settings.warm_up is not None:
        for _ in range(settings.warm_up):
            timed(subject)
        return WarmUp(settings.warm_up, (clock() - began) / 1e9, None)
    runs, calm, last, change, size = 0, 0, 0.0, None, 0
    while True:
        window: list[int] = []
        while len(window) < max(WINDOW_RUNS, size):
            window.append(timed(subject, per))
        runs += len(window) * per
        median = statistics.median(window)
        size = size or min(1000, int(WINDOW_NS / max(median, 1)))
        change = abs(median - last) / last if last else None
        calm = calm + 1 if change is not None and change < STABLE else 0
        last = median
        seconds = (clock() - began) / 1e9
        if calm >= WINDOWS or seconds >= settings.warm_up_cap_s:
            return WarmUp(runs, seconds, calm >= WINDOWS, change)


def group(subject: Subject, settings: Settings, timer: Timer, first_ns: int) -> Trace:
    """Returns an empty trace that says how many calls one timing holds."""
    if settings.scenario == MULTI:
        return Trace(settings.streams)
    if settings.scenario == SERVER:
        return Trace()
    call = first_ns if first_ns > SLOW_NS else statistics.median(timed(subject) for _ in range(PROBES))
    per = timer.batch(call)
    if settings.scenario == OFFLINE:
        per = max(per, int(min(10_000, BLOCK_NS / max(call, 1))))
        if settings.runs is not None:
            per = next(k for k in range(min(per, settings.runs), 0, -1) if settings.runs % k == 0)
        return Trace(per, True)
    return Trace(per, per > 1)


def loop(subject: Subject, settings: Settings, trace: Trace, watch: host.Watch, ended: Ended | None = None) -> None:
    """Calls again and again until it is enough; what breaks it off leaves the trace as it is."""
    single, why = trace.per == 1, ended or settings.ended
    call = subject.call if single else query(subject, trace.per)
    counted = trace.per if settings.scenario == OFFLINE else 1
    stages, check = subject.stages, subject.check
    trace.start = clock()
    while True:
        trace.ended = why(len(trace.began) * counted, (clock() - trace.start) / 1e9)
        if trace.ended:
            return
        began = clock()
        result = call()
        done = clock()
        for each in (result,) if single else result:
            check(each)
        trace.add(began, done, (dict(stages()) or {RUN: done - began}) if single else {})
        watch.tick(done)


def broken(error: BaseException) -> BaseException:
    """Returns an error as one of ours: what a foreign runtime raises is a device that failed."""
    if isinstance(error, AnyNpuError | KeyboardInterrupt):
        return error
    failure = DeviceError(f"the session failed: {type(error).__name__}: {error}", call="run")
    failure.__cause__ = error
    return failure


class Runner:
    """One subject on the thread that opens it: cold start, warm-up, then the loop, as often as asked."""

    def __init__(self, open_subject: Callable[[], Subject], settings: Settings, tell: Tell = _silent) -> None:
        self.settings, self.timer, self._tell = settings.for_verdict(), calibrate(), tell
        self._open = open_subject
        began = clock()
        self.subject = open_subject()
        self.load_ns = clock() - began
        tell("load", self.load_ns / 1e9)
        try:
            self.first_ns = timed(self.subject)
            tell("first run", self.first_ns / 1e9)
            self._group = group(self.subject, self.settings, self.timer, self.first_ns)
            self.warm = warm_up(self.subject, self._group.per, self.settings)
        except BaseException as error:
            self.subject.close()
            if isinstance(error, Exception):
                raise broken(error) from error.__cause__
            raise
        tell("warm-up", self.warm.seconds)

    def run(self, meter: Meter | None = None, root: Path = host.ROOT, ended: Ended | None = None) -> Result:
        """Returns the measurement; one that breaks off holds the samples so far and the error."""
        idle: Reading | None = None
        energy_error: AnyNpuError | None = None
        try:
            if meter is not None and self.settings.idle_s and meter.has_idle:
                meter.start()
                time.sleep(self.settings.idle_s)
                idle = meter.stop()
        except AnyNpuError as error:
            meter, energy_error = None, error
        trace, watch, machine = Trace(self._group.per, self._group.mean), host.Watch(root), host.describe(root)
        error_: BaseException | None = None
        with host.without_gc():
            if meter is not None:
                meter.start()
            watch.start()
            try:
                if self.settings.scenario != SERVER:
                    loop(self.subject, self.settings, trace, watch, ended)
                else:
                    from anynpu.measure.server import serve

                    serve([lambda: self.subject], self.settings, trace, watch)
            except (Exception, KeyboardInterrupt) as error:
                error_ = broken(error)
                trace.trim()
            used = watch.stop()
        reading = None
        if meter is not None:
            try:
                reading = meter.stop()
            except AnyNpuError as error:
                energy_error = error
        self._tell("measure", used.wall_s)
        return Result(
            self.subject.what, self.subject.scope, self.settings, self.timer, self.load_ns, self.first_ns, self.warm,
            trace, watch, used, self.subject.outputs(), machine, error_, reading, idle, energy_error,
        )  # fmt: skip

    def close(self) -> None:
        self.subject.close()
