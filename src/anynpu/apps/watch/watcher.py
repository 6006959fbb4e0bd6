"""The detector at work: reads samples from the store in the order in which they were kept, and raises alerts."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np

from anynpu.apps.watch import state
from anynpu.apps.watch.alerts import Alerts
from anynpu.apps.watch.baselines import BUCKET_S
from anynpu.apps.watch.detector import Detector
from anynpu.apps.watch.registry import Batch, Registry
from anynpu.apps.watch.store import SampleStore, Stored
from anynpu.errors import AnyNpuError

AT_ONCE = 5000
SAVE_EVERY_S = 3600.0
FORGET_EVERY_S = 600.0
LOOK_EVERY_S = 1.0
GATHER_S = 0.25
"""Samples that come within this time are looked at together: a thousand agents are forty steps, not a thousand."""


def batches(rows: Sequence[Stored], registry: Registry) -> Iterator[Batch]:
    """Yields stored samples as the detector takes them: of every host those of one bucket at a time."""
    waiting: dict[str, list[Stored]] = {}
    for row in sorted(rows, key=lambda each: each.time_s):
        waiting.setdefault(row.host, []).append(row)
    while waiting:
        now = []
        for host in list(waiting):
            samples = waiting[host]
            bucket = samples[0].time_s // BUCKET_S
            end = next((n for n, each in enumerate(samples) if each.time_s // BUCKET_S != bucket), len(samples))
            now.append((registry.host(host), samples[:end]))
            if end == len(samples):
                del waiting[host]
            else:
                waiting[host] = samples[end:]
        yield _together(now, registry)


def _together(now: Sequence[tuple[int, Sequence[Stored]]], registry: Registry) -> Batch:
    longest = max(len(samples) for _, samples in now)
    times, offsets = (np.full((len(now), longest), np.nan) for _ in range(2))
    rows: dict[int, int] = {}
    owner: list[int] = []
    cells: list[tuple[int, int, float]] = []
    for row, (host, samples) in enumerate(now):
        for column, sample in enumerate(samples):
            times[row, column], offsets[row, column] = sample.time_s, sample.stamped_s - sample.time_s
            for metric, value in sample.metrics.items():
                series = registry.series(host, metric)
                if series not in rows:
                    rows[series] = len(owner)
                    owner.append(row)
                cells.append((rows[series], column, value))
    values = np.full((len(owner), longest), np.nan)
    if cells:
        where, columns, numbers = zip(*cells, strict=True)
        values[list(where), list(columns)] = numbers
    hosts = np.array([host for host, _ in now], np.int64)
    series_of = np.fromiter(rows, np.int64, len(rows))
    return Batch(hosts, times, offsets, series_of, np.array(owner, np.int64), values)


class Watcher:
    """A thread that follows the store. `say` takes lines for the log."""

    def __init__(
        self,
        store: SampleStore,
        alerts: Alerts,
        say: Callable[[str], None],
        path: Path,
        detector: Detector,
        keep_days: float = 35.0,
    ) -> None:
        self.store, self.alerts, self.say, self.path, self.keep_days = store, alerts, say, path, keep_days
        self.detector = detector
        self.lock, self.wake, self.stopping = threading.Lock(), threading.Event(), threading.Event()
        self.number, self.seen, self.delay_s, self.worst_delay_s = 0, 0, 0.0, 0.0
        self.began_s = self.saved_s = self.forgot_s = time.time()
        if self.path.exists():
            try:
                self.number = state.load(self.detector, self.path)
            except AnyNpuError as error:
                self.say(f"{error.message}; the detector learns anew from the samples that are kept")
                self.path.replace(self.path.with_suffix(".damaged"))
                self.number = 0
        self.thread = threading.Thread(target=self._run, name="watcher", daemon=True)

    def start(self) -> None:
        self.alerts.restore()
        self.thread.start()

    def _run(self) -> None:
        while not self.stopping.is_set():
            try:
                while self.step() == AT_ONCE and not self.stopping.is_set():
                    pass
                now_s = time.time()
                if now_s - self.saved_s > SAVE_EVERY_S:
                    self.save()
                if now_s - self.forgot_s > FORGET_EVERY_S:
                    self.forgot_s = now_s
                    while self.store.forget(now_s - self.keep_days * 86_400) and not self.stopping.is_set():
                        time.sleep(0.05)
            except AnyNpuError as error:
                self.say(error.message)
                self.stopping.wait(10)
            if self.wake.wait(LOOK_EVERY_S):
                self.stopping.wait(GATHER_S)
            self.wake.clear()

    def step(self) -> int:
        """Takes the samples that have come, and returns how many."""
        rows = self.store.after(self.number, AT_ONCE)
        now_s = time.time()
        with self.lock:
            for batch in batches(rows, self.detector.registry):
                changes = self.detector.update(batch)
                if changes:
                    self.alerts.take(self.detector, changes, float(np.nanmax(batch.times_s)))
            if len(rows) < AT_ONCE:
                silent = self.detector.silent(now_s, self.began_s)
                self.alerts.take(self.detector, silent, now_s)
        if rows:
            self.number = rows[-1].number
            self.seen += len(rows)
        return len(rows)

    def save(self) -> None:
        """Writes what was learnt; a disk that is full loses nothing that is not learnt again."""
        self.saved_s = time.time()
        with suppress(AnyNpuError), self.lock:
            state.save(self.detector, self.path, self.number)

    def close(self) -> None:
        """Ends the thread and writes what was learnt."""
        self.stopping.set()
        self.wake.set()
        if self.thread.is_alive():
            self.thread.join(30)
        self.save()
