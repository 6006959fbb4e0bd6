"""Latency as it was: the distribution with its percentiles, and every sample at the time it was taken."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from anynpu.measure.stats import percentile
from anynpu.report.html.axes import Frame, Scale, axes, chart, line, more, padded, short
from anynpu.report.html.markup import Markup, el, table
from anynpu.report.measurements import axis_title

Marks = Mapping[str, tuple[float, float | None, float | None]]
MOST_POINTS, MOST_SPIKES = 2500, 300
SHARES = 44.0
"""The room right of a distribution, where the shares of its line are named."""


def is_wide(samples: Sequence[float]) -> bool:
    """Says whether the samples need a logarithmic axis to be seen together."""
    return min(samples) > 0 and max(samples) / float(np.median(samples)) > 6


def histogram(samples: Sequence[float], unit: str, marks: Marks) -> Markup:
    """Returns counts in equal bins, the cumulative share above them, and the percentiles with their intervals."""
    log = is_wide(samples)
    x = Frame(right=SHARES).x(*padded(samples, 0.02, log=log), log=log)
    rows = max(_rows(marks, x).values(), default=-1) + 1
    frame = Frame(height=280 + 16 * rows, top=20 + 16 * rows, right=SHARES)
    edges, counts = _bins(samples, log)
    y = frame.y(0, max(counts) * 1.08)
    scale = " (logarithmic)" if log else ""
    parts = [*axes(frame, x, y, f"{axis_title(unit)}{scale}", "")]
    for low, high, number in zip(edges[:-1], edges[1:], counts, strict=True):
        if number:
            wide = max(x(high) - x(low) - 1, 1.0)
            tip = f"{short(low)} to {short(high)} {unit}: {number} of {len(samples)}"
            parts.append(
                el("rect", x=x(low), y=y(number), width=wide, height=y(0) - y(number), class_="bar hist", data_tip=tip)
            )
    share, right = frame.y(0, 1.08), frame.width - frame.right
    points, before = [(x(min(samples)), share(0))], 0.0
    for value, part in _shares(samples):
        points += [(x(value), share(before)), (x(value), share(part))]
        before = part
    parts.append(line([*points, (right, share(1.0))], "ecdf"))
    parts += [el("text", f"{p:.0%}", x=right + 4, y=share(p) + 4, class_="tick") for p in (0.5, 1.0)]
    parts += _percentiles(marks, x, frame, unit)
    listing = [{"": name, unit: short(at), "interval": _interval(low, high)} for name, (at, low, high) in marks.items()]
    sentence = f"{len(samples)} samples from {short(min(samples))} to {short(max(samples))} {unit}"
    listed = more("Percentiles as a table", table(listing, "Percentiles", (unit, "interval"))) if listing else None
    note = el("p", f"Bars count samples ({sentence}); the line is the share at or below.", class_="muted")
    return chart("Distribution", sentence, frame, parts, note, listed)


def _shares(samples: Sequence[float]) -> list[tuple[float, float]]:
    """Returns up to 400 samples in rising order, each with the share of samples at or below it."""
    ordered = np.sort(np.asarray(samples, dtype=float))
    places = np.unique(np.linspace(0, len(ordered) - 1, min(len(ordered), 400)).astype(int))
    return [(float(ordered[i]), (int(i) + 1) / len(ordered)) for i in places]


def _bins(samples: Sequence[float], log: bool) -> tuple[list[float], list[int]]:
    """Returns bin edges by Freedman and Diaconis' rule, finer for two heaps, at most 80, and the counts."""
    values = np.asarray(samples, dtype=float)
    on_line = np.log10(values) if log else values
    low, high = float(on_line.min()), float(on_line.max())
    spread = float(np.subtract(*np.percentile(on_line, [75, 25])))
    width = 2 * spread / len(values) ** (1 / 3)
    number = (
        1
        if high <= low
        else min(80, max(8, math.ceil(2 * math.sqrt(len(values))), math.ceil((high - low) / width)))
        if width > 0
        else 40
    )
    counts, edges = np.histogram(on_line, bins=number)
    real = 10**edges if log else edges
    return [float(edge) for edge in real], [int(each) for each in counts]


def _rows(marks: Marks, x: Scale) -> dict[str, int]:
    """Returns the line of each label: below every earlier label that it would touch or whose line it would cross."""
    rows: dict[str, int] = {}
    ends: dict[str, float] = {}
    for name, (at, _, _) in sorted(marks.items(), key=lambda item: item[1][0]):
        rows[name] = 1 + max((row for other, row in rows.items() if ends[other] > x(at)), default=-1)
        ends[name] = x(at) + 7.4 * len(f"{name} {short(at)}") + 10
    return rows


def _percentiles(marks: Marks, x: Scale, frame: Frame, unit: str) -> list[Markup]:
    """Returns each percentile as a line with its label, and its interval as a whisker on it."""
    parts, labels = [], []
    rows = _rows(marks, x)
    for i, (name, (at, low, high)) in enumerate(marks.items()):
        here, label, top = x(at), f"{name} {short(at)}", 14.0 + 16 * rows[name]
        level = frame.top + 8 + 11 * i
        tip = f"{label} {unit}, interval {_interval(low, high)}"
        parts.append(
            el("line", x1=here, x2=here, y1=top - 8, y2=frame.height - frame.bottom, class_="pct", data_tip=tip)
        )
        if low is not None and high is not None:
            ends = [x(min(max(end, x.low), x.high)) for end in (low, high)]
            parts.append(el("line", x1=ends[0], x2=ends[1], y1=level, y2=level, class_="span", data_tip=tip))
            parts += [el("line", x1=end, x2=end, y1=level - 4, y2=level + 4, class_="span") for end in ends]
        flip = here + 7.4 * len(label) > frame.width
        labels.append(el("text", label, x=here + (-5 if flip else 5), y=top, class_="mark end" if flip else "mark"))
    return [*parts, *labels]


def _interval(low: float | None, high: float | None) -> str:
    return "-" if low is None or high is None else f"{short(low)} to {short(high)}"


def timeline(
    samples: Sequence[float],
    started: Sequence[float] | None,
    spikes: Mapping[int, str],
    unit: str,
    *below: Markup | None,
) -> Markup:
    """Returns each sample against its start, or its number where starts are not known, with spikes and their causes."""
    values = np.asarray(samples, dtype=float)
    known = started is not None and len(started) == len(samples)
    times = np.arange(len(values)) + 1.0
    if known and started is not None:
        times = np.asarray(started, dtype=float) - float(started[0])
    log, frame = is_wide(samples), Frame(height=240)
    x, y = frame.x(*padded(times.tolist(), 0.01)), frame.y(*padded(samples, 0.06, log=log), log=log)
    x_title = "started, s after the first" if known else "sample"
    parts = [*axes(frame, x, y, x_title, axis_title(unit) + (" (logarithmic)" if log else ""))]
    far = sorted({i for i in spikes if 0 <= i < len(values)})
    kept = list(range(len(values)))
    if len(values) > MOST_POINTS:  # the spikes and an even choice of the others
        kept = sorted({*map(int, np.linspace(0, len(values) - 1, MOST_POINTS)), *far})
    path = "".join(f"M{x(float(times[i])):.1f} {y(float(values[i])):.1f}h0" for i in kept)
    stretches = np.array_split(np.arange(len(values)), min(60, max(1, len(values) // 5)))
    running = [(x(float(np.mean(times[p]))), y(float(np.median(values[p])))) for p in stretches if len(p)]
    parts += [el("path", d=path, class_="points"), line(running, "running")]
    for i in far[:MOST_SPIKES]:
        when = f"at {short(float(times[i]))} s" if known else f"sample {i + 1}"
        tip = f"{short(float(values[i]))} {unit} {when}" + (f": {spikes[i]}" if spikes[i] else "")
        parts.append(el("circle", cx=x(float(times[i])), cy=y(float(values[i])), r=5, class_="spike", data_tip=tip))
    sentence = f"{len(far)} of {len(values)} samples are outliers"
    thin = f" {len(kept)} of {len(values)} points are drawn." if len(kept) < len(values) else ""
    note = f"{sentence} (circled); none is left out. The line is the running median.{thin}"
    return chart("Timeline", sentence, frame, parts, el("p", note, class_="muted"), *below)


def overlay(runs: Mapping[str, Sequence[float]], unit: str) -> Markup:
    """Returns the cumulative shares of two or more runs in one chart."""
    known = {name: samples for name, samples in runs.items() if samples}
    if not known:
        return Markup("")
    every = [value for samples in known.values() for value in samples]
    log, frame = is_wide(every), Frame(height=260)
    x, y = frame.x(*padded(every, 0.02, log=log), log=log), frame.y(0, 1.0)
    parts = [*axes(frame, x, y, axis_title(unit) + (" (logarithmic)" if log else ""), "share of samples at or below")]
    for i, (name, samples) in enumerate(known.items()):
        parts.append(line([(x(value), y(part)) for value, part in _shares(samples)], f"run run-{i % 6}"))
        parts.append(el("text", name, x=frame.left + 10, y=frame.top + 16 + 18 * i, class_=f"mark key-{i % 6}"))
    medians = "; ".join(
        f"{name}: median {short(percentile(v, 0.5))} {unit}, {len(v)} samples" for name, v in known.items()
    )
    return chart("Distributions", medians, frame, parts, el("p", medians + ".", class_="muted"))
