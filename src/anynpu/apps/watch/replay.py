"""Scores a method on a trace: the share of faults found, false alarms per host-week, and the delay, with intervals.

A fault is found if an alarm that names one of its metrics begins while it lasts, or shortly after: a method that names
no metric gets the benefit of the doubt. What begins outside every fault is false. Alarms of one host that begin within
an hour of each other are one: that is how often somebody would be called.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from anynpu.apps.watch.trace import Label, Trace

WEEK_S = 604_800
AFTER_S = 3600.0
"""An alarm this long after the end of a fault still belongs to it."""
TOGETHER_S = 3600.0
RESAMPLES = 2000
HOST_FAULTS = {"missing": ("missing",), "clock": ("clock", "missing")}


@dataclass(frozen=True)
class Alarm:
    """What a method said: when, of which host, of which metric (empty: none named), by which test."""

    host: str
    time_s: float
    metric: str = ""
    test: str = ""


@dataclass(frozen=True)
class Interval:
    """A figure with its 95 % interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class FaultScore:
    """How well one kind of fault was found."""

    fault: str
    count: int
    found: int
    recall: Interval
    delay_s: Interval | None
    """Median time from the beginning of a fault to its alarm."""
    delay_p90_s: float | None


@dataclass(frozen=True)
class Score:
    """How well a method did on a trace."""

    recall: Interval
    false_alarms: int
    host_weeks: float
    false_alarms_a_host_week: Interval
    faults: tuple[FaultScore, ...]


def wilson(hits: int, count: int) -> Interval:
    """Returns a share with Wilson's 95 % interval."""
    if not count:
        return Interval(math.nan, 0.0, 1.0)
    share, z2 = hits / count, 1.96**2
    middle = (share + z2 / (2 * count)) / (1 + z2 / count)
    half = 1.96 / (1 + z2 / count) * math.sqrt(share * (1 - share) / count + z2 / (4 * count**2))
    return Interval(share, max(0.0, middle - half), min(1.0, middle + half))


def belongs(alarm: Alarm, label: Label, interval_s: float) -> bool:
    """Returns whether an alarm speaks of a fault."""
    if alarm.host != label.host or not label.start_s - interval_s <= alarm.time_s <= label.end_s + AFTER_S:
        return False
    if not alarm.test:
        return True
    if alarm.test in ("missing", "clock") or label.fault in HOST_FAULTS:
        return alarm.test in HOST_FAULTS.get(label.fault, ()) and alarm.metric in (*label.metrics, "")
    return not label.metrics or alarm.metric in label.metrics


def incidents(alarms: Sequence[Alarm]) -> list[Alarm]:
    """Returns the first alarm of every group of a host's alarms that began within an hour of the one before."""
    first: list[Alarm] = []
    last: dict[str, float] = {}
    for alarm in sorted(alarms, key=lambda each: (each.host, each.time_s)):
        if alarm.host not in last or alarm.time_s - last[alarm.host] > TOGETHER_S:
            first.append(alarm)
        last[alarm.host] = alarm.time_s
    return first


def score(trace: Trace, alarms: Sequence[Alarm], from_s: float = 0.0) -> Score:
    """Returns how well alarms match the labels of a trace; what is before `from_s` is for learning."""
    interval = trace.interval_s
    alarms = [alarm for alarm in alarms if alarm.time_s >= from_s]
    labels = [label for label in trace.labels if label.start_s >= from_s]
    of_host: dict[str, list[Alarm]] = {}
    for alarm in alarms:
        of_host.setdefault(alarm.host, []).append(alarm)
    faults = []
    for fault in dict.fromkeys(label.fault for label in labels):
        of_kind = [label for label in labels if label.fault == fault]
        delays = []
        for label in of_kind:
            hits = [alarm.time_s for alarm in of_host.get(label.host, ()) if belongs(alarm, label, interval)]
            delays += [max(0.0, min(hits) - label.start_s)] if hits else []
        low, high = math.nan, math.nan
        if delays:
            rng = np.random.default_rng(1)
            medians = np.median(rng.choice(np.array(delays), (RESAMPLES, len(delays))), axis=1)
            low, high = float(np.quantile(medians, 0.025)), float(np.quantile(medians, 0.975))
        faults.append(
            FaultScore(
                fault,
                len(of_kind),
                len(delays),
                wilson(len(delays), len(of_kind)),
                Interval(float(np.median(delays)), low, high) if delays else None,
                float(np.quantile(delays, 0.9)) if delays else None,
            )
        )
    false, weeks = _false(trace, incidents(alarms), labels, from_s)
    caught, count = sum(f.found for f in faults), sum(f.count for f in faults)
    value = float(false.sum() / weeks.sum()) if weeks.sum() else math.nan
    if not weeks.sum():
        rate = Interval(value, math.nan, math.nan)
    elif len(false) < 5:  # too few hosts to draw from: as if alarms were a Poisson process
        half = 1.96 * math.sqrt(max(float(false.sum()), 1.0)) / float(weeks.sum())
        rate = Interval(value, max(0.0, value - half), value + half)
    else:  # hosts are drawn anew, for noisy hosts stay noisy
        draws = np.random.default_rng(2).integers(0, len(false), (RESAMPLES, len(false)))
        rates = false[draws].sum(1) / np.maximum(weeks[draws].sum(1), 1e-9)
        rate = Interval(value, float(np.quantile(rates, 0.025)), float(np.quantile(rates, 0.975)))
    return Score(wilson(caught, count), int(false.sum()), float(weeks.sum()), rate, tuple(faults))


def _false(
    trace: Trace, alarms: Sequence[Alarm], labels: Sequence[Label], from_s: float
) -> tuple[np.ndarray, np.ndarray]:
    """Returns false alarms and normal weeks, host by host."""
    number = {host.name: n for n, host in enumerate(trace.hosts)}
    false, weeks = np.zeros(len(number)), np.zeros(len(number))
    windows: dict[str, list[tuple[float, float]]] = {}
    interval_s = trace.interval_s
    for label in labels:
        windows.setdefault(label.host, []).append((label.start_s - interval_s, label.end_s + AFTER_S))
    for host in trace.hosts:
        seconds = max(0.0, float(host.received_s[-1]) - max(from_s, float(host.received_s[0])))
        weeks[number[host.name]] = (
            max(0.0, seconds - sum(end - start for start, end in windows.get(host.name, ()))) / WEEK_S
        )
    for alarm in alarms:
        if not any(start <= alarm.time_s <= end for start, end in windows.get(alarm.host, ())):
            false[number[alarm.host]] += 1
    return false, weeks
