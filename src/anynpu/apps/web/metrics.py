"""Counters, gauges and histograms in Prometheus' text form (version 0.0.4), with no package of its own."""

from __future__ import annotations

import math
import threading
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

KIND = b"text/plain; version=0.0.4; charset=utf-8"
SECONDS = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
Labels = tuple[str, ...]
_ESCAPES = str.maketrans({"\\": r"\\", "\n": r"\n", '"': r"\""})


def _shown(names: Sequence[str], values: Labels, more: str = "") -> str:
    pairs = [f'{name}="{value.translate(_ESCAPES)}"' for name, value in zip(names, values, strict=True)]
    pairs += [more] if more else []
    return "{" + ",".join(pairs) + "}" if pairs else ""


def number(value: float) -> str:
    """Returns a number as Prometheus reads it."""
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    return str(int(value)) if float(value).is_integer() and abs(value) < 2**53 else repr(float(value))


@dataclass
class Counter:
    """A number that only grows, by labels; `add` may be called from any thread."""

    name: str
    help: str
    labels: tuple[str, ...] = ()
    values: dict[Labels, float] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, *labels: str, by: float = 1.0) -> None:
        with self.lock:
            self.values[labels] = self.values.get(labels, 0.0) + by

    def text(self) -> Iterable[str]:
        yield f"# HELP {self.name} {self.help}"
        yield f"# TYPE {self.name} counter"
        with self.lock:
            yield from [f"{self.name}{_shown(self.labels, k)} {number(v)}" for k, v in self.values.items()]


class Series:
    """The values of one set of labels; one thread alone adds to it."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds, self.counts, self.total = bounds, [0] * (len(bounds) + 1), 0.0

    def note(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value


@dataclass
class Histogram:
    """How often a value fell below each bound, by labels. All values of a set of labels come from one thread."""

    name: str
    help: str
    labels: tuple[str, ...] = ()
    bounds: tuple[float, ...] = SECONDS
    series: dict[Labels, Series] = field(default_factory=dict)

    def of(self, *labels: str) -> Series:
        """Returns the values of these labels, to add to."""
        series = self.series.get(labels)
        return self.series.setdefault(labels, Series(self.bounds)) if series is None else series

    def text(self) -> Iterable[str]:
        yield f"# HELP {self.name} {self.help}"
        yield f"# TYPE {self.name} histogram"
        for labels, series in list(self.series.items()):
            so_far, total = 0, series.total
            for bound, count in zip((*self.bounds, math.inf), list(series.counts), strict=True):
                so_far += count
                le = f'le="{number(bound)}"'
                yield f"{self.name}_bucket{_shown(self.labels, labels, le)} {so_far}"
            yield f"{self.name}_sum{_shown(self.labels, labels)} {number(total)}"
            yield f"{self.name}_count{_shown(self.labels, labels)} {so_far}"


def gauge(name: str, help: str, labels: Sequence[str], values: Mapping[Labels, float]) -> Iterable[str]:
    """Yields the lines of values that are read when they are asked for."""
    yield f"# HELP {name} {help}"
    yield f"# TYPE {name} gauge"
    for key, value in values.items():
        yield f"{name}{_shown(labels, key)} {number(value)}"
