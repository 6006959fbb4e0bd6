"""Hosts and series by number: what the detector's arrays are indexed by."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]
Doubles = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]
Indices = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Unit:
    """How a metric is looked at: `floor` is a change too small to matter. What varies by factors is looked at in
    decades (log10), and `zero` is what counts as nothing there."""

    floor: float
    zero: float = 0.0
    suffix: str = ""


UNITS = (
    ("_percent", Unit(0.5, suffix=" %")),
    ("_celsius", Unit(0.5, suffix=" °C")),
    ("_bytes_per_s", Unit(0.15, zero=1000.0, suffix=" B/s")),
    ("_per_s", Unit(0.15, zero=1.0, suffix="/s")),
    ("_bytes", Unit(0.1, zero=1000.0, suffix=" B")),
    ("load1", Unit(0.05)),
)
OTHER = Unit(0.0)


def unit_of(metric: str) -> Unit:
    """Returns the unit that the end of a metric's name says."""
    return next((unit for end, unit in UNITS if metric.endswith(end)), OTHER)


@dataclass(frozen=True)
class Batch:
    """Samples of some hosts, of each those of one bucket in the order of time.

    `times_s` and `offsets_s` (what the host's clock was off by) have a row for every host, `values` one for every
    series, `owner` says which row of `hosts` a series belongs to. Where there is no sample or value there is NaN.
    """

    hosts: Indices
    times_s: Doubles
    offsets_s: Doubles
    series: Indices
    owner: Indices
    values: Doubles

    def after(self, seen_s: Doubles) -> Batch:
        """Returns the batch without samples that are not later than what was seen of their host."""
        fresh: Flags = np.greater(self.times_s, seen_s[self.hosts][:, None])
        if fresh.all() or (fresh | np.isnan(self.times_s)).all():
            return self
        keep = np.asarray(fresh.any(1))
        times, offsets = np.where(fresh, self.times_s, np.nan), np.where(fresh, self.offsets_s, np.nan)
        values = np.where(fresh[self.owner], self.values, np.nan)
        order = np.argsort(~fresh, axis=1, kind="stable")  # what is left stands first
        times, offsets = np.take_along_axis(times, order, 1), np.take_along_axis(offsets, order, 1)
        values = np.take_along_axis(values, order[self.owner], 1)
        kept = keep[self.owner] & ~np.isnan(values).all(1)
        number = np.cumsum(keep) - 1
        return Batch(
            self.hosts[keep], times[keep], offsets[keep], self.series[kept], number[self.owner[kept]], values[kept]
        )


@dataclass
class Registry:
    """The hosts and series that have been seen, in the order in which they came."""

    hosts: list[str] = field(default_factory=list)
    metrics: list[str] = field(default_factory=list)
    """The metric of every series."""
    owners: list[int] = field(default_factory=list)
    """The host of every series."""
    kinds: list[int] = field(default_factory=list)
    """The number of every series' metric: the same for all hosts."""
    _kind: dict[str, int] = field(default_factory=dict)
    _host: dict[str, int] = field(default_factory=dict)
    _series: dict[tuple[int, str], int] = field(default_factory=dict)
    _by_host: dict[int, list[str]] = field(default_factory=dict)

    def host(self, name: str) -> int:
        """Returns the number of a host, a new one where it is new."""
        if name not in self._host:
            self._host[name] = len(self.hosts)
            self.hosts.append(name)
        return self._host[name]

    def series(self, host: int, metric: str) -> int:
        """Returns the number of a host's metric, a new one where it is new."""
        key = host, metric
        if key not in self._series:
            self._series[key] = len(self.metrics)
            self.metrics.append(metric)
            self.owners.append(host)
            self._by_host.setdefault(host, []).append(metric)
            self.kinds.append(self._kind.setdefault(metric, len(self._kind)))
        return self._series[key]

    def find(self, host: str, metric: str) -> int | None:
        """Returns the number of a host's metric, if it was ever seen."""
        return self._series.get((self._host.get(host, -1), metric))

    def metrics_of(self, host: str) -> set[str]:
        """Returns the metrics that a host has had."""
        return set(self._by_host.get(self._host.get(host, -1), ()))
