"""The server scenario: queries arrive when they arrive, whether or not the last one is answered.

A session has one owning thread: it opens the session and is the only one to call it. Another thread keeps the schedule
and puts queries into a queue, from which the owner takes them in order. So the latency of a query is the time in the
queue and the time of the run; with one owner nothing runs at the same time as anything else on that session.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Sequence

import numpy as np

from anynpu.measure import host
from anynpu.measure.load import Settings, Trace, broken
from anynpu.measure.subject import RUN, Subject
from anynpu.measure.timer import clock

GRACE = 2.0
"""After this many times the maximum time, queries that still wait are given up."""


def arrivals(settings: Settings) -> list[int]:
    """Returns when each query arrives, in nanoseconds from the start; the same seed gives the same times."""
    if settings.qps is None:
        return []
    gaps, at = np.random.default_rng(settings.seed), 0.0
    times: list[int] = []
    while True:
        at += float(gaps.exponential(1 / settings.qps))
        if settings.ended(len(times), at):
            return times
        times.append(round(at * 1e9))


class _Line:
    """The queue between the schedule and the owners, and what stops both."""

    def __init__(self, trace: Trace, watch: host.Watch, deadline: int) -> None:
        self.waiting: queue.SimpleQueue[int | None] = queue.SimpleQueue()
        self.trace, self.watch, self.deadline = trace, watch, deadline
        self.over = threading.Event()
        self.lock = threading.Lock()
        self.error: BaseException | None = None

    def issue(self, schedule: Sequence[int], owners: int) -> None:
        """Puts every query into the queue at its time."""
        for offset in schedule:
            due = self.trace.start + offset
            if ((wait := (due - clock()) / 1e9) > 0 and self.over.wait(wait)) or self.over.is_set():
                break
            self.trace.late.append(clock() - due)
            self.waiting.put(due)
        for _ in range(owners):
            self.waiting.put(None)

    def own(self, subject: Subject) -> None:
        """Answers queries until there are no more."""
        while (due := self.waiting.get()) is not None and not self.over.is_set():
            began = clock()
            if began > self.deadline:
                self.over.set()
                return
            result = subject.call()
            ended = clock()
            subject.check(result)
            parts = dict(subject.stages()) or {RUN: ended - began}
            with self.lock:
                self.trace.add(due, ended, {"queue": began - due, **parts})
            self.watch.tick(ended)

    def own_opened(self, open_subject: Callable[[], Subject]) -> None:
        """Opens a subject, owns it to the end, and keeps an error for the first thread."""
        try:
            subject = open_subject()
            try:
                self.own(subject)
            finally:
                subject.close()
        except Exception as error:
            self.error = self.error or broken(error)
            self.over.set()


def serve(openers: Sequence[Callable[[], Subject]], settings: Settings, trace: Trace, watch: host.Watch) -> None:
    """Answers a Poisson schedule; this thread owns the first subject, every further one has a thread of its own."""
    schedule = arrivals(settings)
    trace.queries, trace.start = len(schedule), clock() + 20_000_000
    trace.arrived_per_s = len(schedule) / (schedule[-1] / 1e9) if schedule else 0.0
    longest = max(schedule[-1] / 1e9 if schedule else 0.0, settings.max_time_s)
    line = _Line(trace, watch, trace.start + round(GRACE * longest * 1e9))
    threads = [threading.Thread(target=line.own_opened, args=(each,), daemon=True) for each in openers[1:]]
    threads.append(threading.Thread(target=line.issue, args=(schedule, len(openers)), daemon=True))
    for thread in threads:
        thread.start()
    try:
        line.own(openers[0]())
    except BaseException:
        line.over.set()
        raise
    finally:
        for thread in threads:
            thread.join(timeout=30)
        # By arrival: several owners do not finish in order
        order = sorted(range(len(trace.began)), key=trace.began.__getitem__)
        for values in (trace.began, trace.elapsed, *trace.stages.values()):
            values[:] = [values[i] for i in order]
    if line.error is not None:
        raise line.error
    trace.ended = "enough" if len(trace.began) == len(schedule) else "maximum time"
