"""Traces of machines that never were: metrics as servers and boards have them, and faults whose time is known.

The model is of causes, and knows nothing of any detector. Demand has harmonics of the day, a weekend, good and bad
days, autocorrelated noise and bursts with heavy tails. Jobs run by the hour, night and week, start late and take as
long as they take. CPU follows demand and jobs, load and temperatures follow the CPU with their own inertia, memory
follows what is cached, disks fill and are rotated, machines are rebooted. Sensors round. All parameters of a machine
are drawn from wide ranges by its own random generator.

A fault is put where an operator could see it: a sensor that normally stands still for hours is not chosen to be stuck,
and a season is broken only on machines that have one. That is all the choosing there is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from anynpu.apps.watch.trace import HostTrace, Label, Trace

Numbers = npt.NDArray[np.float64]
DAY_S, WEEK_S = 86_400, 604_800
METRICS = (
    "cpu_percent",
    "memory_percent",
    "load1",
    "temperature_soc_celsius",
    "disk_root_percent",
    "disk_io_bytes_per_s",
    "net_received_bytes_per_s",
    "net_sent_bytes_per_s",
    "npu_percent",
    "npu_temperature_celsius",
)
CPU, MEMORY, LOAD, TEMPERATURE, DISK, DISK_IO, RECEIVED, SENT, NPU, NPU_TEMPERATURE = range(len(METRICS))
FAULTS = ("spike", "leak", "stuck", "drift", "level", "season", "missing", "clock")
START_S = 1_767_571_200.0
"""Monday 2026-01-05 00:00 UTC."""


@dataclass(frozen=True)
class Fault:
    """What went wrong on a machine: its kind, the metric (empty where it is the whole machine), and the true times."""

    kind: str
    metric: str
    start_s: float
    end_s: float


@dataclass
class Machine:
    """The trace of one machine. `true_s` is when a sample was taken, `stamped_s` what the machine's clock said."""

    name: str
    true_s: Numbers
    stamped_s: Numbers
    values: Numbers
    faults: list[Fault] = field(default_factory=list)


def machine(
    seed: int, weeks: float = 5.0, clean_weeks: float = 3.0, interval_s: float = 30.0, faults: int = 4
) -> Machine:
    """Returns the trace of one machine; all faults come after the clean weeks, far enough apart to tell them."""
    rng = np.random.default_rng([20_260_105, seed])
    time_s = np.asarray(START_S + np.arange(int(weeks * WEEK_S / interval_s)) * interval_s, np.float64)
    world = _World(rng, time_s, interval_s)
    values = world.rounded(world.values())
    kept = np.ones(time_s.size, bool)
    stamped = time_s + rng.normal(0, 0.02, time_s.size) + rng.uniform(-2, 2)
    labels = _add_faults(world, values, kept, stamped, clean_weeks, faults)
    values = np.round(values, 2)
    for first, length in world.reboots:
        kept[first : first + length] = False
    kept &= rng.random(time_s.size) > rng.choice([0.0, 0.0005, 0.004])  # a sample is lost now and then
    return Machine(f"m{seed:04d}", time_s[kept], stamped[kept], values[kept], labels)


def smoothed(noise: Numbers, time_constant: float) -> Numbers:
    """Returns a series that follows another with inertia (a first-order low pass), its time constant in samples."""
    length = int(min(noise.size, max(2.0, 12 * time_constant)))
    kernel = np.exp(-np.arange(length) / max(time_constant, 1e-3))
    padded = np.concatenate([np.full(length, noise[: length * 2].mean()), noise])
    size = 1 << int(np.ceil(np.log2(padded.size + length)))
    product = np.fft.irfft(np.fft.rfft(padded, size) * np.fft.rfft(kernel / kernel.sum(), size), size)
    return np.asarray(product[length : length + noise.size], np.float64)


class _World:
    """One machine and what happens on it."""

    def __init__(self, rng: np.random.Generator, time_s: Numbers, interval_s: float) -> None:
        self.rng, self.time_s, self.interval_s = rng, time_s, interval_s
        self.size = time_s.size
        self.minute = 60.0 / interval_s
        self.hour_of_day = (time_s % DAY_S) / 3600
        self.day = ((time_s - START_S) // DAY_S).astype(int)
        self.role = str(rng.choice(["web", "database", "batch", "inference", "idle"], p=[0.3, 0.2, 0.2, 0.2, 0.1]))
        self.cores = int(rng.choice([4, 8, 12, 16, 32]))
        self.seasonal = {"web": 1.0, "database": 0.7, "inference": 0.6, "batch": 0.15, "idle": 0.05}[self.role]
        self.seasonal *= rng.uniform(0.6, 1.3)
        self.reboots = [
            (int(rng.integers(self.size)), int(rng.uniform(1, 4) * self.minute) + 1)
            for _ in range(rng.poisson(self.size * interval_s / WEEK_S / 4))
        ]
        self.jobs = self._jobs()
        self.profile = self._profile()
        self.demand = self._demand(self.profile)

    def _profile(self) -> Numbers:
        """Returns the daily and weekly course of demand, about 0 to 1."""
        rng = self.rng
        peak = rng.uniform(9, 21)
        angle = 2 * np.pi * (self.hour_of_day - peak) / 24
        day = 0.5 + 0.5 * np.cos(angle) + rng.uniform(0, 0.35) * np.cos(2 * angle + rng.uniform(0, 6.3))
        day += rng.uniform(0, 0.15) * np.cos(3 * angle + rng.uniform(0, 6.3))
        weekend = np.where(self.day % 7 >= 5, rng.uniform(0.25, 1.05), 1.0)
        return np.asarray(np.clip(day, 0.02, None) * weekend, np.float64)

    def _demand(self, profile: Numbers) -> Numbers:
        rng = self.rng
        days = np.exp(rng.normal(0, rng.uniform(0.03, 0.12), self.day.max() + 1))[self.day]
        wander = smoothed(rng.standard_normal(self.size), rng.uniform(5, 60) * self.minute)
        wander *= rng.uniform(0.05, 0.25) / max(wander.std(), 1e-9)
        quick = rng.standard_t(rng.uniform(2.5, 6), self.size) * rng.uniform(0.01, 0.05)
        return np.asarray(np.clip(profile * days * np.exp(wander) + quick, 0, None) + self._bursts(), np.float64)

    def _bursts(self) -> Numbers:
        """Returns short crowds: Poisson in time, Pareto in height, a few minutes long."""
        rng, height = self.rng, np.zeros(self.size)
        for first in rng.integers(0, self.size, rng.poisson(rng.uniform(2, 40) * self.size * self.interval_s / WEEK_S)):
            length = 1 + int(rng.exponential(5) * self.minute)
            height[first : first + length] += min(0.08 * (1 + rng.pareto(2.2)), 1.2)
        return height

    def _jobs(self) -> list[tuple[Numbers, float, float, float]]:
        """Returns jobs that run by the clock: when they are active, and what they take of CPU, disk and network."""
        rng, jobs = self.rng, []
        kinds = [("hourly", rng.uniform() < 0.5), ("nightly", rng.uniform() < 0.8), ("weekly", rng.uniform() < 0.5)]
        if self.role == "batch":
            kinds += [("nightly", True), ("hourly", True)]
        for kind, wanted in kinds:
            if not wanted:
                continue
            active = np.zeros(self.size)
            period = {"hourly": 3600 * rng.choice([1, 2, 4, 6]), "nightly": DAY_S, "weekly": WEEK_S}[kind]
            offset = rng.uniform(0, period) if kind != "nightly" else rng.uniform(0, 6) * 3600
            usual_s = {"hourly": rng.uniform(60, 400), "nightly": rng.uniform(600, 5400), "weekly": 7200.0}[kind]
            for start in np.arange(START_S + offset, self.time_s[-1], period):
                late = rng.exponential(rng.choice([5.0, 60.0, 300.0]))
                first = int((start + late - START_S) / self.interval_s)
                active[first : first + 1 + int(usual_s * np.exp(rng.normal(0, 0.15)) / self.interval_s)] = 1
            jobs.append((active, rng.uniform(5, 55), 10 ** rng.uniform(6.5, 8.3), 10 ** rng.uniform(5, 7.7)))
        return jobs

    def values(self) -> Numbers:
        """Returns every metric as it is, before its sensor rounds it."""
        rng, found = self.rng, np.zeros((self.size, len(METRICS)))
        base = {"web": 8, "database": 12, "batch": 4, "inference": 8, "idle": 1.5}[self.role] * rng.uniform(0.5, 1.6)
        cpu = base + self.seasonal * rng.uniform(15, 55) * self.demand + sum(a * c for a, c, _, _ in self.jobs)
        cpu = cpu * np.exp(rng.standard_t(4, self.size) * rng.uniform(0.02, 0.12)) + rng.exponential(0.6, self.size)
        for first, length in self.reboots:
            cpu[first + length : first + length + int(3 * self.minute)] += rng.uniform(20, 60)
        found[:, CPU] = np.clip(cpu, 0, 100)
        found[:, MEMORY] = self._memory()
        queue = smoothed(found[:, CPU] / 100 * self.cores, 1.0 * self.minute)
        found[:, LOAD] = np.clip(queue * rng.uniform(0.8, 1.4) * (1 + 0.1 * rng.standard_t(5, self.size)), 0, None)
        room = self._room()
        heat = rng.uniform(15, 35) * smoothed(found[:, CPU] / 100, rng.uniform(2, 9) * self.minute)
        found[:, TEMPERATURE] = room + rng.uniform(8, 18) + heat + rng.normal(0, rng.uniform(0.1, 0.7), self.size)
        found[:, DISK] = self._disk()
        self._traffic(found)
        self._npu(found, room)
        return found

    def rounded(self, values: Numbers) -> Numbers:
        """Returns the values as the sensors give them."""
        rng = self.rng
        steps = (0.1, 0.1, 0.01, rng.choice([0.1, 0.5, 1.0]), 0.1, 1.0, 1.0, 1.0, 1.0, rng.choice([0.1, 1.0]))
        return np.asarray(np.round(values / steps) * steps, np.float64)

    def _room(self) -> Numbers:
        rng = self.rng
        sun = rng.uniform(0.3, 3) * np.cos(2 * np.pi * (self.hour_of_day - 15) / 24)
        cooler = rng.uniform(0, 0.8) * np.sin(2 * np.pi * self.time_s / (rng.uniform(8, 45) * 60))
        slow = smoothed(rng.standard_normal(self.size), 2 * DAY_S / self.interval_s)
        return np.asarray(22 + sun + cooler + slow * rng.uniform(0.2, 1.2) / max(slow.std(), 1e-9), np.float64)

    def _memory(self) -> Numbers:
        """Returns what is used: a base, caches that grow and are dropped, what demand holds, a slow wander."""
        rng = self.rng
        period = rng.uniform(2, 30) * 3600 / self.interval_s
        saw = ((np.arange(self.size) + rng.uniform(0, period)) % period) / period * rng.uniform(0, 6)
        slow = smoothed(rng.standard_normal(self.size), rng.uniform(4, 16) * 60 * self.minute)
        slow *= rng.uniform(0.3, 2.5) / max(slow.std(), 1e-9)
        used = (
            rng.uniform(18, 60)
            + saw
            + slow
            + self.seasonal * rng.uniform(0, 9) * smoothed(self.demand, 20 * self.minute)
        )
        used += rng.normal(0, rng.uniform(0.03, 0.3), self.size)
        for first, length in self.reboots:  # caches are empty after a reboot and fill again
            since = np.arange(self.size) - first - length
            dropped, hours = rng.uniform(3, 12), rng.uniform(1, 6)
            used -= np.where(since >= 0, dropped * np.exp(-np.maximum(since, 0) / (hours * 60 * self.minute)), 0)
        return np.asarray(np.clip(used, 3, 97), np.float64)

    def _disk(self) -> Numbers:
        rng, days = self.rng, (self.time_s - START_S) / DAY_S
        period = rng.choice([1.0, 7.0])
        logs = ((days + rng.uniform(0, period)) % period) / period * rng.uniform(0.1, 4)
        return np.asarray(np.clip(rng.uniform(12, 65) + rng.uniform(0, 0.15) * days + logs, 0, 99), np.float64)

    def _traffic(self, found: Numbers) -> None:
        rng = self.rng
        for column, part in ((RECEIVED, 1.0), (SENT, rng.uniform(0.1, 8))):
            rate = 10 ** rng.uniform(3.2, 6) * part * (0.03 + self.seasonal * self.demand)
            rate *= np.exp(rng.standard_t(4, self.size) * rng.uniform(0.1, 0.45))
            found[:, column] = rate + sum(active * net * part * 0.3 for active, _, _, net in self.jobs)
        io = 10 ** rng.uniform(3.5, 6.2) * (0.1 + self.demand) * np.exp(rng.standard_t(3.5, self.size) * 0.5)
        found[:, DISK_IO] = io + sum(active * disk for active, _, disk, _ in self.jobs)
        found[:, DISK_IO] *= rng.random(self.size) > rng.choice([0.0, 0.3])  # nothing is written in many intervals

    def _npu(self, found: Numbers, room: Numbers) -> None:
        rng = self.rng
        if self.role == "inference":
            busy = 90 * np.clip(self.demand, 0, 1.1) * rng.uniform(0.4, 1.0) + rng.normal(0, 4, self.size)
        else:
            active, *_ = self.jobs[0] if self.jobs else (np.zeros(self.size),)
            busy = active * rng.uniform(10, 80) * (rng.uniform() < 0.4) + rng.normal(0, 1.0, self.size)
        found[:, NPU] = np.clip(busy, 0, 100)
        heat = rng.uniform(5, 25) * smoothed(found[:, NPU] / 100, 4 * self.minute)
        found[:, NPU_TEMPERATURE] = room + rng.uniform(6, 14) + heat + rng.normal(0, rng.uniform(0.1, 0.5), self.size)


def _add_faults(
    world: _World, values: Numbers, kept: npt.NDArray[np.bool_], stamped: Numbers, clean_weeks: float, count: int
) -> list[Fault]:
    """Puts faults of random kinds into the weeks after the clean ones, each in a slot of its own."""
    rng = world.rng
    first = int(clean_weeks * WEEK_S / world.interval_s)
    if count == 0 or first >= world.size:
        return []
    slot = (world.size - first) // count
    labels = []
    for number, kind in enumerate(rng.permutation(np.resize(rng.permutation(FAULTS), count))):
        room = slot - int(14 * 3600 / world.interval_s)  # the rest of a slot is normal again
        if room <= 0:
            break
        begin = first + number * slot
        fault = _MAKERS[str(kind)](world, values, kept, stamped, begin, room)
        if fault is not None:
            labels.append(fault)
    return labels


def _span(world: _World, begin: int, room: int, least_s: float, most_s: float) -> slice:
    length = min(int(world.rng.uniform(least_s, most_s) / world.interval_s), room - 1)
    first = begin + int(world.rng.integers(max(1, room - length)))
    return slice(first, first + max(length, 1))


def _label(world: _World, kind: str, column: int | None, span: slice) -> Fault:
    metric = "" if column is None else METRICS[column]
    return Fault(kind, metric, float(world.time_s[span.start]), float(world.time_s[min(span.stop, world.size) - 1]))


def _spike(
    world: _World, values: Numbers, kept: npt.NDArray[np.bool_], stamped: Numbers, begin: int, room: int
) -> Fault:
    """A process runs away, a flood arrives, a fan stops for some minutes."""
    rng, span = world.rng, _span(world, begin, room, 150, 1200)
    shape = np.minimum(1, (np.arange(span.stop - span.start) + 1) / rng.uniform(1, 4))
    highest = np.quantile(values[:begin], 0.999, axis=0)
    choices = [c for c in (CPU, MEMORY, TEMPERATURE, NPU) if highest[c] < 78] + [RECEIVED, DISK_IO, LOAD]
    column = int(rng.choice(choices))
    now = values[span, column]
    if column in (CPU, MEMORY, NPU):
        goal = rng.uniform(0.6, 1.0) * (100 - highest[column]) + highest[column]
        values[span, column] = np.maximum(now, now + shape * (goal - now))
    elif column == TEMPERATURE:
        values[span, column] = now + shape * (highest[column] - now + rng.uniform(8, 25)).clip(0)
    else:
        values[span, column] = np.maximum(now, shape * highest[column] * 10 ** rng.uniform(0.4, 1.5))
    return _label(world, "spike", column, span)


def _leak(
    world: _World, values: Numbers, kept: npt.NDArray[np.bool_], stamped: Numbers, begin: int, room: int
) -> Fault:
    """A process loses memory until it is killed."""
    rng, span = world.rng, _span(world, begin, room, 6 * 3600, 48 * 3600)
    top = max(97 - float(np.quantile(values[:begin, MEMORY], 0.99)), 8.0)
    ramp = np.linspace(0, rng.uniform(0.5, 1.0) * top, span.stop - span.start) ** rng.uniform(0.9, 1.1)
    values[span, MEMORY] = np.clip(values[span, MEMORY] + ramp, 0, 99.5)
    return _label(world, "leak", MEMORY, span)


def _stuck(
    world: _World, values: Numbers, kept: npt.NDArray[np.bool_], stamped: Numbers, begin: int, room: int
) -> Fault | None:
    """A sensor gives its last value again and again."""
    rng, span = world.rng, _span(world, begin, room, 3 * 3600, 24 * 3600)
    choices = [
        c for c in range(len(METRICS)) if c != DISK and longest_run(values[:begin, c]) * 4 < span.stop - span.start
    ]
    if not choices:
        return None
    column = int(rng.choice(choices))
    values[span, column] = values[span.start, column]
    return _label(world, "stuck", column, span)


def longest_run(series: Numbers) -> int:
    """Returns for how many samples a series stood still at most."""
    changes = np.flatnonzero(np.diff(series) != 0)
    return int(np.diff(np.concatenate([[-1], changes, [series.size - 1]])).max())


def _drift(
    world: _World, values: Numbers, kept: npt.NDArray[np.bool_], stamped: Numbers, begin: int, room: int
) -> Fault:
    """Dust in a cooler, a disk that fills: days until anybody would notice."""
    rng, span = world.rng, _span(world, begin, room, 1.5 * DAY_S, 3 * DAY_S)
    column = int(rng.choice([TEMPERATURE, DISK, NPU_TEMPERATURE]))
    rise = rng.uniform(10, 22) if column != DISK else rng.uniform(12, 30)
    values[span, column] += np.linspace(0, rise, span.stop - span.start)
    if column == DISK:
        values[span, column] = np.clip(values[span, column], 0, 99.9)
    return _label(world, "drift", column, span)


def _level(
    world: _World, values: Numbers, kept: npt.NDArray[np.bool_], stamped: Numbers, begin: int, room: int
) -> Fault:
    """A new version takes more, for good or until it is taken back."""
    rng, span = world.rng, _span(world, begin, room, 10 * 3600, 60 * 3600)
    column = int(rng.choice([CPU, MEMORY, TEMPERATURE, RECEIVED, LOAD]))
    if column in (CPU, MEMORY):
        values[span, column] = np.clip(values[span, column] + rng.uniform(18, 40), 0, 99.9)
    elif column == TEMPERATURE:
        values[span, column] += rng.uniform(9, 18)
    else:
        values[span, column] = values[span, column] * rng.uniform(4, 10) + np.quantile(values[:begin, column], 0.5)
    return _label(world, "level", column, span)


def _season(
    world: _World, values: Numbers, kept: npt.NDArray[np.bool_], stamped: Numbers, begin: int, room: int
) -> Fault | None:
    """The day's course comes at the wrong hours, or not at all; every single value would be normal at another hour."""
    rng = world.rng
    if world.seasonal < 0.4:
        return None
    span = _span(world, begin, room, 20 * 3600, 48 * 3600)
    hours = int(rng.uniform(7, 13) * 3600 / world.interval_s)
    moved = slice(span.start - hours, span.stop - hours)
    followers = [CPU, LOAD, RECEIVED, SENT, TEMPERATURE]
    if rng.uniform() < 0.5:
        values[span.start : span.stop, followers] = values[moved.start : moved.stop, followers].copy()
    else:  # nobody comes: what is left is what the nights have
        nights = np.flatnonzero(world.profile[:begin] <= np.quantile(world.profile[:begin], 0.15))
        for column in followers:
            values[span, column] = rng.choice(values[nights, column], span.stop - span.start)
    return _label(world, "season", CPU, span)


def _missing(
    world: _World, values: Numbers, kept: npt.NDArray[np.bool_], stamped: Numbers, begin: int, room: int
) -> Fault:
    """The machine, or one of its sensors, is silent."""
    span = _span(world, begin, room, 15 * 60, 6 * 3600)
    if world.rng.uniform() < 0.6:
        kept[span] = False
        return _label(world, "missing", None, span)
    column = int(world.rng.choice([TEMPERATURE, NPU, NPU_TEMPERATURE, RECEIVED]))
    values[span, column] = np.nan
    return _label(world, "missing", column, span)


def _clock(
    world: _World, values: Numbers, kept: npt.NDArray[np.bool_], stamped: Numbers, begin: int, room: int
) -> Fault:
    """The clock jumps, and is put right hours later."""
    rng, span = world.rng, _span(world, begin, room, 10 * 60, 24 * 3600)
    stamped[span] += rng.choice([-1, 1]) * 10 ** rng.uniform(np.log10(45), np.log10(43_200))
    return _label(world, "clock", None, span)


Maker = Callable[[_World, Numbers, npt.NDArray[np.bool_], Numbers, int, int], Fault | None]
_MAKERS: dict[str, Maker] = {
    "spike": _spike,
    "leak": _leak,
    "stuck": _stuck,
    "drift": _drift,
    "level": _level,
    "season": _season,
    "missing": _missing,
    "clock": _clock,
}


FOLLOWERS = tuple(METRICS[column] for column in (CPU, LOAD, RECEIVED, SENT, TEMPERATURE))


def fleet(seeds: Iterable[int], weeks: float = 6.0, clean_weeks: float = 4.0, interval_s: float = 30.0) -> Trace:
    """Returns the machines of some seeds as one trace with its labels."""
    trace = Trace(METRICS, [])
    for seed in seeds:
        found = machine(seed, weeks, clean_weeks, interval_s)
        trace.hosts.append(HostTrace(found.name, found.true_s, found.stamped_s, found.values))
        for fault in found.faults:
            metrics = FOLLOWERS if fault.kind == "season" else (fault.metric,) if fault.metric else ()
            trace.labels.append(Label(found.name, fault.kind, metrics, fault.start_s, fault.end_s))
    return trace


def csv_of(trace: Trace) -> tuple[str, str]:
    """Returns a trace and its labels as CSV files."""
    rows = [",".join(("time", "host", "received", *trace.metrics))]
    for host in trace.hosts:
        for stamped, received, values in zip(host.stamped_s, host.received_s, host.values, strict=True):
            cells = ("" if np.isnan(value) else f"{value:.10g}" for value in values)
            rows.append(f"{stamped:.3f},{host.name},{received:.3f},{','.join(cells)}")
    labels = ["host,fault,metric,start,end"]
    for label in trace.labels:
        labels.append(f"{label.host},{label.fault},{' '.join(label.metrics)},{label.start_s:.3f},{label.end_s:.3f}")
    return "\n".join(rows) + "\n", "\n".join(labels) + "\n"
