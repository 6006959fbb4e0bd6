"""Methods that replay a trace: ours, that of the first description, and the plain rule of three sigmas."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from anynpu.apps.watch.detector import Detector
from anynpu.apps.watch.registry import Doubles, Flags, Registry
from anynpu.apps.watch.replay import Alarm
from anynpu.apps.watch.trace import Trace

LEARN_S = 28 * 86_400.0


def learning_end(trace: Trace) -> float:
    """Returns when a trace is to be scored from by default: after four weeks, or after half of a shorter one."""
    starts = [float(host.received_s[0]) for host in trace.hosts]
    ends = [float(host.received_s[-1]) for host in trace.hosts]
    return min(starts) + min(LEARN_S, (max(ends) - min(starts)) / 2)


def detected(trace: Trace, detector: Detector, progress: Callable[[float], None] = lambda done: None) -> list[Alarm]:
    """Returns what a detector says of a trace as it goes by."""
    registry, alarms = detector.registry, []
    end = max(float(host.received_s[-1]) for host in trace.hosts)
    for number, batch in enumerate(trace.batches(registry)):
        for anomaly in detector.update(batch):
            if anomaly.ended_s is None:
                metric = "" if anomaly.series is None else registry.metrics[anomaly.series]
                test = "" if anomaly.test == "unlike" else anomaly.test
                alarms.append(Alarm(registry.hosts[anomaly.host], anomaly.opened_s, metric, test))
        if number % 96 == 0:
            progress(float(np.nanmax(batch.times_s)) / end)
    silent = detector.silent(end)
    alarms += [Alarm(registry.hosts[each.host], each.opened_s, "", each.test) for each in silent]
    return alarms


def robust(trace: Trace, rate: float, progress: Callable[[float], None] = lambda done: None) -> list[Alarm]:
    """Returns what the default detector says of a trace."""
    return detected(trace, Detector(Registry(), rate, trace.interval_s), progress)


def rising(over: Flags) -> Flags:
    """Returns where something begins to be true."""
    return np.asarray(over & ~np.concatenate([[False], over[:-1]]), np.bool_)


def sigma_scores(trace: Trace, learn_end_s: float) -> list[Doubles]:
    """Returns for every host how many standard deviations each value is from the mean of the time of learning."""
    by_host = []
    for host in trace.hosts:
        learning = host.values[host.received_s < learn_end_s]
        counts = np.count_nonzero(~np.isnan(learning), axis=0)
        total = np.where(np.isnan(learning), 0, learning)
        mean = total.sum(0) / np.maximum(counts, 1)
        spread = np.sqrt(np.where(np.isnan(learning), 0, (learning - mean) ** 2).sum(0) / np.maximum(counts - 1, 1))
        scores = np.abs(host.values - mean) / np.maximum(spread, 1e-9)
        by_host.append(np.where(np.isnan(scores), 0, scores))
    return by_host


def three_sigma(trace: Trace, learn_end_s: float, sigmas: float = 3.0) -> list[Alarm]:
    """Returns an alarm wherever a value goes beyond this many standard deviations."""
    alarms = []
    for host, scores in zip(trace.hosts, sigma_scores(trace, learn_end_s), strict=True):
        for column, metric in enumerate(trace.metrics):
            times = host.received_s[rising(scores[:, column] > sigmas)]
            alarms += [Alarm(host.name, float(time_s), metric, "sigma") for time_s in times]
    return alarms
