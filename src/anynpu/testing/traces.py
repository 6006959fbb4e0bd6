"""Traces of the machines of `testing.machines`, with faults whose time is known.

A fault is put where an operator could see it: a sensor that normally stands still for hours is not chosen to be stuck,
and a season is broken only on machines that have one. That is all the choosing there is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from anynpu.apps.watch.trace import HostTrace, Label, Trace
from anynpu.testing.machines import (
    CPU,
    DAY_S,
    DISK,
    DISK_IO,
    LOAD,
    MEMORY,
    METRICS,
    NPU,
    NPU_TEMPERATURE,
    RECEIVED,
    SENT,
    START_S,
    TEMPERATURE,
    WEEK_S,
    Numbers,
    World,
)

FAULTS = ("spike", "leak", "stuck", "drift", "level", "season", "missing", "clock")


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
    world = World(rng, time_s, interval_s)
    values = world.rounded(world.values())
    kept = np.ones(time_s.size, bool)
    stamped = time_s + rng.normal(0, 0.02, time_s.size) + rng.uniform(-2, 2)
    labels = _add_faults(world, values, kept, stamped, clean_weeks, faults)
    values = np.round(values, 2)
    for first, length in world.reboots:
        kept[first : first + length] = False
    kept &= rng.random(time_s.size) > rng.choice([0.0, 0.0005, 0.004])  # a sample is lost now and then
    return Machine(f"m{seed:04d}", time_s[kept], stamped[kept], values[kept], labels)


def _add_faults(
    world: World, values: Numbers, kept: npt.NDArray[np.bool_], stamped: Numbers, clean_weeks: float, count: int
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
        fault = _MAKERS[str(kind)](Slot(world, values, kept, stamped, begin, room))
        if fault is not None:
            labels.append(fault)
    return labels


@dataclass(frozen=True)
class Slot:
    """A stretch of a trace that a fault may be put into: `room` samples from `begin` on."""

    world: World
    values: Numbers
    kept: npt.NDArray[np.bool_]
    stamped: Numbers
    begin: int
    room: int

    def span(self, least_s: float, most_s: float) -> slice:
        """Draws where the fault is."""
        rng = self.world.rng
        length = min(int(rng.uniform(least_s, most_s) / self.world.interval_s), self.room - 1)
        first = self.begin + int(rng.integers(max(1, self.room - length)))
        return slice(first, first + max(length, 1))

    def label(self, kind: str, column: int | None, span: slice) -> Fault:
        """Returns the fault with its true times."""
        metric, time_s = "" if column is None else METRICS[column], self.world.time_s
        return Fault(kind, metric, float(time_s[span.start]), float(time_s[min(span.stop, self.world.size) - 1]))


Maker = Callable[[Slot], Fault | None]
_MAKERS: dict[str, Maker] = {}


def _maker(kind: str) -> Callable[[Maker], Maker]:
    """Returns a decorator for the function that puts a fault of a kind into a slot."""
    return lambda function: _MAKERS.setdefault(kind, function)


@_maker("spike")
def _spike(at: Slot) -> Fault:
    """A process runs away, a flood arrives, a fan stops for some minutes."""
    rng, span, values = at.world.rng, at.span(150, 1200), at.values
    shape = np.minimum(1, (np.arange(span.stop - span.start) + 1) / rng.uniform(1, 4))
    highest = np.quantile(values[: at.begin], 0.999, axis=0)
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
    return at.label("spike", column, span)


@_maker("leak")
def _leak(at: Slot) -> Fault:
    """A process loses memory until it is killed."""
    rng, span, values = at.world.rng, at.span(6 * 3600, 48 * 3600), at.values
    top = max(97 - float(np.quantile(values[: at.begin, MEMORY], 0.99)), 8.0)
    ramp = np.linspace(0, rng.uniform(0.5, 1.0) * top, span.stop - span.start) ** rng.uniform(0.9, 1.1)
    values[span, MEMORY] = np.clip(values[span, MEMORY] + ramp, 0, 99.5)
    return at.label("leak", MEMORY, span)


@_maker("stuck")
def _stuck(at: Slot) -> Fault | None:
    """A sensor gives its last value again and again."""
    rng, span, values = at.world.rng, at.span(3 * 3600, 24 * 3600), at.values
    choices = [
        c for c in range(len(METRICS)) if c != DISK and longest_run(values[: at.begin, c]) * 4 < span.stop - span.start
    ]
    if not choices:
        return None
    column = int(rng.choice(choices))
    values[span, column] = values[span.start, column]
    return at.label("stuck", column, span)


def longest_run(series: Numbers) -> int:
    """Returns for how many samples a series stood still at most."""
    changes = np.flatnonzero(np.diff(series) != 0)
    return int(np.diff(np.concatenate([[-1], changes, [series.size - 1]])).max())


@_maker("drift")
def _drift(at: Slot) -> Fault:
    """Dust in a cooler, a disk that fills: days until anybody would notice."""
    rng, span, values = at.world.rng, at.span(1.5 * DAY_S, 3 * DAY_S), at.values
    column = int(rng.choice([TEMPERATURE, DISK, NPU_TEMPERATURE]))
    rise = rng.uniform(10, 22) if column != DISK else rng.uniform(12, 30)
    values[span, column] += np.linspace(0, rise, span.stop - span.start)
    if column == DISK:
        values[span, column] = np.clip(values[span, column], 0, 99.9)
    return at.label("drift", column, span)


@_maker("level")
def _level(at: Slot) -> Fault:
    """A new version takes more, for good or until it is taken back."""
    rng, span, values = at.world.rng, at.span(10 * 3600, 60 * 3600), at.values
    column = int(rng.choice([CPU, MEMORY, TEMPERATURE, RECEIVED, LOAD]))
    if column in (CPU, MEMORY):
        values[span, column] = np.clip(values[span, column] + rng.uniform(18, 40), 0, 99.9)
    elif column == TEMPERATURE:
        values[span, column] += rng.uniform(9, 18)
    else:
        values[span, column] = values[span, column] * rng.uniform(4, 10) + np.quantile(values[: at.begin, column], 0.5)
    return at.label("level", column, span)


@_maker("season")
def _season(at: Slot) -> Fault | None:
    """The day's course comes at the wrong hours, or not at all; every single value would be normal at another hour."""
    world, values, rng = at.world, at.values, at.world.rng
    if world.seasonal < 0.4:
        return None
    span = at.span(20 * 3600, 48 * 3600)
    hours = int(rng.uniform(7, 13) * 3600 / world.interval_s)
    moved = slice(span.start - hours, span.stop - hours)
    followers = [CPU, LOAD, RECEIVED, SENT, TEMPERATURE]
    if rng.uniform() < 0.5:
        values[span.start : span.stop, followers] = values[moved.start : moved.stop, followers].copy()
    else:  # nobody comes: what is left is what the nights have
        nights = np.flatnonzero(world.profile[: at.begin] <= np.quantile(world.profile[: at.begin], 0.15))
        for column in followers:
            values[span, column] = rng.choice(values[nights, column], span.stop - span.start)
    return at.label("season", CPU, span)


@_maker("missing")
def _missing(at: Slot) -> Fault:
    """The machine, or one of its sensors, is silent."""
    span = at.span(15 * 60, 6 * 3600)
    if at.world.rng.uniform() < 0.6:
        at.kept[span] = False
        return at.label("missing", None, span)
    column = int(at.world.rng.choice([TEMPERATURE, NPU, NPU_TEMPERATURE, RECEIVED]))
    at.values[span, column] = np.nan
    return at.label("missing", column, span)


@_maker("clock")
def _clock(at: Slot) -> Fault:
    """The clock jumps, and is put right hours later."""
    rng, span = at.world.rng, at.span(10 * 60, 24 * 3600)
    at.stamped[span] += rng.choice([-1, 1]) * 10 ** rng.uniform(np.log10(45), np.log10(43_200))
    return at.label("clock", None, span)


FOLLOWERS = tuple(METRICS[column] for column in (CPU, LOAD, RECEIVED, SENT, TEMPERATURE))


def fleet(seeds: Iterable[int], weeks: float = 6.0, clean_weeks: float = 4.0, interval_s: float = 30.0) -> Trace:
    """Returns the machines of some seeds as one trace with its labels."""
    trace = Trace(METRICS, [])
    for seed in seeds:
        traced = machine(seed, weeks, clean_weeks, interval_s)
        trace.hosts.append(HostTrace(traced.name, traced.true_s, traced.stamped_s, traced.values))
        for fault in traced.faults:
            metrics = FOLLOWERS if fault.kind == "season" else (fault.metric,) if fault.metric else ()
            trace.labels.append(Label(traced.name, fault.kind, metrics, fault.start_s, fault.end_s))
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
