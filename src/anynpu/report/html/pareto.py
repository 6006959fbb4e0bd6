"""Many builds against each other: what no other build beats stands out."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence

from anynpu.records.sweep import SweepRow
from anynpu.report.html.axes import Frame, axes, chart, line, padded, short
from anynpu.report.html.markup import Child, Markup, el

SHAPES = 6
Value = Callable[[SweepRow], float | None]


def pareto(title: str, rows: Sequence[SweepRow], across: tuple[str, Value], up: tuple[str, Value]) -> Markup:
    """Returns every row that has both figures, one shape and colour a chip, the front joined; "" for none."""
    figures = [(row, across[1](row), up[1](row)) for row in rows]
    known = [(row, a, b) for row, a, b in figures if a is not None and b is not None and math.isfinite(a + b)]
    if not known:
        return Markup("")
    frame = Frame(height=330, right=24)
    across_values = [a for _, a, _ in known]
    log = min(across_values) > 0 and max(across_values) / min(across_values) > 20
    x = frame.x(*padded(across_values, 0.08, log=log), log=log)
    y = frame.y(*padded([b for _, _, b in known], 0.1))
    parts: list[Child] = [*axes(frame, x, y, across[0] + (" (logarithmic)" if log else ""), up[0])]
    front = sorted(((a, b) for row, a, b in known if row.on_front), key=lambda p: (p[0], p[1]))
    parts.append(_staircase([(x(a), y(b)) for a, b in _best(front)]))
    chips = list(dict.fromkeys(row.chip for row in rows))
    for row, a, b in sorted(known, key=lambda p: p[0].on_front):
        tip = f"{label(row)}: {up[0]} {short(b)}, {across[0]} {short(a)}" + (", on the front" if row.on_front else "")
        front_class = "front" if row.on_front else "beaten"
        kind = chips.index(row.chip) % SHAPES
        parts.append(shape(kind, x(a), y(b), f"dot {front_class} c{kind}", tip))
    said = f"{len(known)} builds, {len(front)} on the front"
    return chart(title, said, frame, parts, legend(chips))


def label(row: SweepRow) -> str:
    """Returns a row's name: model, chip and options."""
    return " ".join(part for part in (row.model, row.chip, row.option_text) if part)


def _best(front: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Returns the points that rise in this plane; others are on the front for a figure that it does not show."""
    found: list[tuple[float, float]] = []
    for a, b in front:
        if not found or b > found[-1][1]:
            found.append((a, b))
    return found


def _staircase(points: Sequence[tuple[float, float]]) -> Markup | None:
    steps = [corner for (_, y), (x, to) in itertools.pairwise(points) for corner in ((x, y), (x, to))]
    return line([points[0], *steps], "frontier") if steps else None


def shape(kind: int, x: float, y: float, class_: str, tip: str = "") -> Markup:
    """Returns one of six shapes, so that colour is never the only sign."""
    if kind == 0:
        return el("circle", cx=x, cy=y, r=6, class_=class_, data_tip=tip or None)
    corners = {
        1: ((-6, -6), (6, -6), (6, 6), (-6, 6)),
        2: ((0, -7.5), (7, 5.5), (-7, 5.5)),
        3: ((0, -8), (8, 0), (0, 8), (-8, 0)),
        4: ((0, 7.5), (7, -5.5), (-7, -5.5)),
        5: (
            (-2.4, -7),
            (2.4, -7),
            (2.4, -2.4),
            (7, -2.4),
            (7, 2.4),
            (2.4, 2.4),
            (2.4, 7),
            (-2.4, 7),
            (-2.4, 2.4),
            (-7, 2.4),
            (-7, -2.4),
            (-2.4, -2.4),
        ),
    }[kind]
    path = " ".join(f"{x + dx:.1f},{y + dy:.1f}" for dx, dy in corners)
    return el("polygon", points=path, class_=class_, data_tip=tip or None)


def legend(names: Sequence[str]) -> Markup:
    """Returns which shape is which chip."""
    items = []
    for i, name in enumerate(names):
        sign = el(
            "svg",
            shape(i % SHAPES, 9, 9, f"dot front c{i % SHAPES}"),
            viewbox="0 0 18 18",
            class_="key",
            aria_hidden="true",
        )
        items.append(el("li", sign, name))
    front = el(
        "li", el("span", class_="key-line"), "front: no other build is better in one figure and as good in the rest"
    )
    return el("ul", *items, front, class_="legend")
