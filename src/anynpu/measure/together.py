"""Several models at once on one device: each alone, then all at the same time, and how much that slows each.

Every session has one owning thread, which opens it and is the only one to call it. Sessions that keep Python's lock
while they compute take turns here whatever the device could do; `cores_used` tells.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace

from anynpu.errors import ConfigError
from anynpu.measure import host
from anynpu.measure.load import SINGLE, Result, Runner, Settings, Tell
from anynpu.measure.outcome import error_of, latency, to_record
from anynpu.measure.subject import Subject
from anynpu.records.bench import BenchRecord, Cold, Latency, ModelTogether, Slowdown, Together
from anynpu.records.shared import Summary


class _Owner:
    """One model and the thread that owns it."""

    def __init__(self, name: str, open_subject: Callable[[], Subject], settings: Settings, tell: Tell) -> None:
        self.name = name
        self._thread = ThreadPoolExecutor(1)
        self.enough = threading.Event()
        self.runner: Runner | None = None
        self._make = lambda: Runner(open_subject, settings, lambda stage, s: tell(f"{stage} of {name}", s))

    def open(self) -> None:
        self.runner = self._thread.submit(self._make).result()

    def run(self, ended: Callable[[int, float], str]) -> Future[Result]:
        assert self.runner is not None
        return self._thread.submit(self.runner.run, ended=ended)

    def close(self) -> None:
        if self.runner is not None:
            self._thread.submit(self.runner.close).result()
        self._thread.shutdown()


@dataclass(frozen=True)
class _Rule:
    """When a loop ends: all of `wait_for` have enough, or somebody says stop."""

    settings: Settings
    own: threading.Event
    wait_for: tuple[threading.Event, ...]
    halt: threading.Event

    def __call__(self, count: int, seconds: float) -> str:
        if self.halt.is_set():
            return "stopped"
        if self.settings.ended(count, seconds):
            self.own.set()
        return "enough" if all(event.is_set() for event in self.wait_for) else ""


def measure_together(
    openers: Sequence[tuple[str, Callable[[], Subject]]], settings: Settings, tell: Tell
) -> tuple[BenchRecord, BaseException | None]:
    """Returns the record of the first model alone with `together` in it, and what broke the measurement off."""
    if settings.scenario != SINGLE:
        raise ConfigError(f"several models at once are measured single-stream, not {settings.scenario}")
    owners, halt = [_Owner(name, opener, settings, tell) for name, opener in openers], threading.Event()
    try:
        with host.without_gc():
            for owner in owners:
                owner.open()
            # The first that breaks off is the last
            alone: list[Result] = []
            for owner in owners:
                if not halt.is_set():
                    own = threading.Event()
                    alone += _wait([owner.run(_Rule(settings, own, (own,), halt))], halt)
            both = [] if halt.is_set() else _at_once(owners, settings, halt)
    finally:
        halt.set()
        for owner in owners:
            owner.close()
    error = next((result.error for result in (*both, *alone) if result.error is not None), None)
    models = []
    for at, (each, single) in enumerate(zip(owners, alone, strict=False)):
        shared = both[at] if both else None
        a, b = _latency(single), None if shared is None else _latency(shared)
        trouble = single.error if shared is None or single.error else shared.error
        models.append(
            ModelTogether(
                name=each.name,
                executed=single.what,
                cold=Cold(load_ms=single.load_ns / 1e6, first_ms=single.first_ns / 1e6),
                alone=a,
                together=b,
                slowdown=slowdown(a.summary, b.summary if b else None),
                error=error_of(trouble),
            )
        )
    used = both[0].used if both else None
    together = Together(
        seconds=used.wall_s if used else None, cores_used=used.cores_used if used else None, models=tuple(models)
    )
    return replace(to_record(alone[0]), together=together, complete=error is None, error=error_of(error)), error


def _at_once(owners: Sequence[_Owner], settings: Settings, halt: threading.Event) -> list[Result]:
    """Returns the results of all at the same time: each goes on until every one has enough samples."""
    events = tuple(owner.enough for owner in owners)
    futures = [owner.run(_Rule(settings, owner.enough, events, halt)) for owner in owners]
    for future in futures:
        # One that broke off would let the others wait for ever.
        future.add_done_callback(lambda done: halt.set() if done.exception() or done.result().error else None)
    return _wait(futures, halt)


def _wait(futures: Sequence[Future[Result]], halt: threading.Event) -> list[Result]:
    """Waits for all; an interruption ends their loops and becomes the first one's error."""
    interrupted: BaseException | None = None
    try:
        results = [future.result() for future in futures]
    except KeyboardInterrupt as error:
        halt.set()
        interrupted = error
        results = [future.result() for future in futures]
    if any(result.error for result in results):
        halt.set()
    if interrupted is not None:
        results[0] = replace(results[0], error=interrupted)
    return results


def _latency(result: Result) -> Latency:
    trace = result.trace
    return latency(trace.samples_ms(), trace.started_s(), batch=trace.per if trace.mean else 1)


def slowdown(alone: Summary | None, shared: Summary | None) -> Slowdown | None:
    """Returns the ratio of the medians and, from the two medians' own intervals, how small and large it can be."""
    if not alone or not shared or not alone.median:
        return None
    (a_low, a_high), (b_low, b_high) = (each.median_interval or (None, None) for each in (alone, shared))
    ratio = shared.median / alone.median
    if a_low is None or a_high is None or b_low is None or b_high is None:
        return Slowdown(ratio=ratio)
    return Slowdown(ratio=ratio, low=b_low / a_high, high=b_high / a_low)
