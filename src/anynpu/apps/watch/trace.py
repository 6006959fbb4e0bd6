"""Traces: samples of hosts over time with labelled faults, as a CSV file or in memory.

    time,host,received,cpu_percent,memory_percent,...
    2026-01-05T00:00:00Z,web1,2026-01-05T00:00:00Z,3.1,41.0,...

`time` is what the host's clock said (seconds since 1970, or ISO 8601), `received` (optional) what the collector's said;
every other column is a metric, empty where there was no value. Labels are in a second file, trace.labels.csv:

    host,fault,metric,start,end
"""

from __future__ import annotations

import csv
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import numpy as np

from anynpu.apps.watch.baselines import BUCKET_S
from anynpu.apps.watch.registry import Batch, Doubles, Registry
from anynpu.errors import ConfigError

MOST_ROWS = 50_000_000
LABEL_COLUMNS = ("host", "fault", "metric", "start", "end")


@dataclass(frozen=True)
class Label:
    """A fault that is known: on which host, what it was, the metrics that show it (none: any), from when to when."""

    host: str
    fault: str
    metrics: tuple[str, ...]
    start_s: float
    end_s: float


@dataclass
class HostTrace:
    """The samples of one host, in the order in which they came."""

    name: str
    received_s: Doubles
    stamped_s: Doubles
    values: Doubles


@dataclass
class Trace:
    """Hosts with the same metrics, and their faults."""

    metrics: tuple[str, ...]
    hosts: list[HostTrace]
    labels: list[Label] = field(default_factory=list)

    @property
    def interval_s(self) -> float:
        """The usual time between two samples of a host."""
        steps = [np.median(np.diff(host.received_s)) for host in self.hosts if len(host.received_s) > 1]
        return float(max(np.median(steps), 1e-3)) if steps else 30.0

    def batches(self, registry: Registry) -> Iterator[Batch]:
        """Yields the samples bucket by bucket, in the order of time."""
        numbers = np.array([registry.host(host.name) for host in self.hosts], np.int64)
        series = np.array([[registry.series(int(n), m) for m in self.metrics] for n in numbers], np.int64)
        # For every bucket in which a host has samples the first of them and the one after the last.
        edges: list[dict[int, tuple[int, int]]] = []
        for host in self.hosts:
            buckets = np.floor(host.received_s / BUCKET_S).astype(np.int64)
            starts = np.flatnonzero(np.diff(buckets, prepend=buckets[0] - 1))
            spans = zip(starts, np.append(starts[1:], len(buckets)), strict=True)
            edges.append({int(buckets[s]): (int(s), int(e)) for s, e in spans})
        for bucket in sorted(set().union(*edges)):
            here = [(n, *span[bucket]) for n, span in enumerate(edges) if bucket in span]
            longest = max(end - begin for _, begin, end in here)
            times, offsets = (np.full((len(here), longest), np.nan) for _ in range(2))
            values = np.full((len(here), len(self.metrics), longest), np.nan)
            for row, (n, begin, end) in enumerate(here):
                host, length = self.hosts[n], end - begin
                times[row, :length] = host.received_s[begin:end]
                offsets[row, :length] = host.stamped_s[begin:end] - host.received_s[begin:end]
                values[row, :, :length] = host.values[begin:end].T
            which = np.array([n for n, _, _ in here])
            owner, column = np.nonzero(np.isfinite(values).any(2))
            yield Batch(numbers[which], times, offsets, series[which][owner, column], owner, values[owner, column])


def _seconds(text: str, place: str) -> float:
    """Returns a time that is given in seconds or in ISO 8601."""
    try:
        value = float(text)
    except ValueError:
        try:
            moment = datetime.fromisoformat(text.strip())
        except ValueError:
            raise ConfigError(f"{place}: {text[:40]!r} is not a time", "seconds since 1970, or ISO 8601") from None
        return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
    if not math.isfinite(value) or abs(value) > 1e12:
        raise ConfigError(f"{place}: {text[:40]!r} is not a time", "seconds since 1970, or ISO 8601")
    return value


def _number(text: str, place: str) -> float:
    if not text.strip():
        return math.nan
    try:
        value = float(text)
    except ValueError:
        raise ConfigError(f"{place}: {text[:40]!r} is not a number") from None
    return value if math.isfinite(value) else math.nan


def _rows(path: Path, needed: Sequence[str]) -> Iterator[tuple[str, Mapping[str, str]]]:
    """Yields the rows of a CSV file by column, each with its place for messages."""
    try:
        with path.open(newline="", encoding="utf-8-sig") as stream:
            reader = csv.DictReader(stream, strict=True)
            names = reader.fieldnames or []
            for name in needed:
                if name not in names:
                    raise ConfigError(f"{path}: has no column {name}", f"its columns: {', '.join(names)[:200]}")
            if len(set(names)) != len(names):
                raise ConfigError(f"{path}: two columns have the same name")
            for number, row in enumerate(reader, 2):
                if None in row or None in row.values():
                    raise ConfigError(f"{path}: line {number}: not as many values as there are columns")
                if number > MOST_ROWS:
                    raise ConfigError(f"{path}: more than {MOST_ROWS} rows", "replay it in parts")
                yield f"{path}: line {number}", row
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror})") from None
    except (UnicodeDecodeError, csv.Error) as error:
        raise ConfigError(f"{path}: is not a CSV file ({error})") from None


def read_labels(path: Path) -> list[Label]:
    """Returns the faults that a file lists; several metrics are separated by blanks."""
    labels = []
    for place, row in _rows(path, LABEL_COLUMNS):
        start_s, end_s = _seconds(row["start"], place), _seconds(row["end"], place)
        if end_s < start_s:
            raise ConfigError(f"{place}: the fault ends before it starts")
        labels.append(Label(row["host"], row["fault"], tuple(row["metric"].split()), start_s, end_s))
    return labels


def read_trace(path: Path, labels: Path | None = None) -> Trace:
    """Returns the trace in a CSV file with the labels next to it, or in the file that is named."""
    metrics: tuple[str, ...] = ()
    times: dict[str, list[tuple[float, float]]] = {}
    values: dict[str, list[list[float]]] = {}
    for place, row in _rows(path, ("time", "host")):
        metrics = metrics or tuple(name for name in row if name not in ("time", "host", "received"))
        stamped = _seconds(row["time"], place)
        received = _seconds(row["received"], place) if row.get("received") else stamped
        times.setdefault(row["host"], []).append((received, stamped))
        values.setdefault(row["host"], []).append([_number(row[name], f"{place}: {name}") for name in metrics])
    if not times or not metrics:
        raise ConfigError(f"{path}: holds no samples")
    hosts = []
    for name, pairs in times.items():
        received_s, stamped_s = np.array(pairs, np.float64).T
        order = np.argsort(received_s, kind="stable")
        hosts.append(HostTrace(name, received_s[order], stamped_s[order], np.array(values[name])[order]))
    labels_path = labels or path.with_suffix(".labels.csv")
    if labels is None and not labels_path.is_file():
        return Trace(metrics, hosts)
    faults = read_labels(labels_path)
    for label in faults:
        if label.host not in times:
            raise ConfigError(f"{labels_path}: a fault of {label.host!r}, which is not in {path}")
        for metric in label.metrics:
            if metric not in metrics:
                raise ConfigError(f"{labels_path}: a fault of the metric {metric!r}, which is not in {path}")
    return Trace(metrics, hosts, faults)
