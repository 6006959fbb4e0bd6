"""What the page shows: hosts as they are now, and time lines with what is usual."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypedDict

import numpy as np

from anynpu.apps.watch.baselines import BUCKET_S, DAY, SLOTS, WEEK
from anynpu.apps.watch.detector import Detector
from anynpu.apps.watch.registry import Registry, unit_of
from anynpu.apps.watch.samples import MOST_METRICS, Delivery
from anynpu.apps.watch.store import Stored
from anynpu.errors import ConfigError

POINTS = 360


class Line(TypedDict):
    """One metric of a host over time: points of equal distance, null where there is nothing."""

    metric: str
    unit: str
    mean: list[float | None]
    low: list[float | None]
    high: list[float | None]
    usual_low: list[float | None]
    usual_high: list[float | None]


class HostRow(TypedDict):
    """A host as it is now."""

    host: str
    seen_s: float
    metrics: dict[str, float]
    wrong: list[str]


def check_metrics(registry: Registry, delivery: Delivery) -> None:
    """Raises where a host would get more series than one host may have."""
    names = {name for sample in delivery.samples for name in sample.metrics}
    known = registry.metrics_of(delivery.host)
    if len(names | known) > MOST_METRICS:
        raise ConfigError(f"host {delivery.host} would have more than {MOST_METRICS} metrics")


def overview(detector: Detector) -> list[HostRow]:
    """Returns every host with its last values, and what is wrong with it."""
    detector.grow()
    wrong: dict[int, list[str]] = {}
    for anomaly in detector.open.values():
        name = anomaly.test if anomaly.series is None else detector.registry.metrics[anomaly.series]
        wrong.setdefault(anomaly.host, []).append(name)
    rows: list[HostRow] = [
        {"host": name, "seen_s": float(detector.seen_s[number]), "metrics": {}, "wrong": wrong.get(number, [])}
        for number, name in enumerate(detector.registry.hosts)
    ]
    for series, (owner, metric) in enumerate(zip(detector.registry.owners, detector.registry.metrics, strict=True)):
        value = float(detector.last[series, 1])
        if np.isfinite(value):
            rows[owner]["metrics"][metric] = real(detector, series, value)
    return rows


def real(detector: Detector, series: int, value: float) -> float:
    """Returns a value as it was measured."""
    zero = float(detector.zero[series])
    return 10**value - zero if zero else value


def lines(detector: Detector, host: str, rows: Sequence[Stored], from_s: float, to_s: float) -> list[Line]:
    """Returns the time lines of a host's metrics."""
    detector.grow()
    places = np.clip(((np.array([row.time_s for row in rows]) - from_s) / (to_s - from_s) * POINTS), 0, POINTS - 1)
    columns = places.astype(np.int64) if len(rows) else np.zeros(0, np.int64)
    names = sorted({name for row in rows for name in row.metrics})
    drawn = []
    for name in names:
        values = np.array([row.metrics.get(name, np.nan) for row in rows], np.float64)
        known = ~np.isnan(values)
        total, count = np.zeros(POINTS), np.zeros(POINTS)
        low, high = np.full(POINTS, np.inf), np.full(POINTS, -np.inf)
        np.add.at(total, columns[known], values[known])
        np.add.at(count, columns[known], 1)
        np.minimum.at(low, columns[known], values[known])
        np.maximum.at(high, columns[known], values[known])
        mean = np.where(count > 0, total / np.maximum(count, 1), np.nan)
        bottom, top = _usual(detector, host, name, from_s, to_s)
        drawn.append(
            Line(
                metric=name,
                unit=unit_of(name).suffix.strip(),
                mean=_plain(mean),
                low=_plain(low),
                high=_plain(high),
                usual_low=_plain(bottom),
                usual_high=_plain(top),
            )
        )
    return drawn


def _usual(detector: Detector, host: str, metric: str, from_s: float, to_s: float) -> tuple[np.ndarray, np.ndarray]:
    """Returns how low and high samples usually go at every point, as far as that is known."""
    series = detector.registry.find(host, metric)
    nothing = np.full(POINTS, np.nan)
    if series is None or np.isnan(detector.baselines.level[series]):
        return nothing, nothing
    times = from_s + (np.arange(POINTS) + 0.5) / POINTS * (to_s - from_s)
    slots, base = (times // BUCKET_S).astype(np.int64) % SLOTS, detector.baselines
    usual = base.level[series] + base.season[series, slots % WEEK]
    bottom, top = usual - base.bottom[series, slots % DAY], usual + base.top[series, slots % DAY]
    zero = float(detector.zero[series])
    if zero:
        return 10.0**bottom - zero, 10.0**top - zero
    return bottom.astype(np.float64), top.astype(np.float64)


def _plain(values: np.ndarray) -> list[float | None]:
    return [round(float(value), 4) if np.isfinite(value) else None for value in values]
