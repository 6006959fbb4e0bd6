"""Many builds against each other: what no other build beats stands out."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence

from anynpu.records.sweep import SweepRow
from anynpu.report.html.axes import Frame, axes, chart, line, padded, short
from anynpu.report.html.markup import Child, Markup, el

SHAPES = 6
ROOM = 16.0
"""How far apart the middles of two dots are at least."""
Value = Callable[[SweepRow], float | None]
Point = tuple[float, float]


def pareto(title: str, rows: Sequence[SweepRow], across: tuple[str, Value], up: tuple[str, Value]) -> Markup:
    """Returns every row that has both figures, one shape and colour a chip, with the front of the two; "" for none."""
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
    best = front_of([(a, b) for row, a, b in known if not row.error])
    if best:  # from the axis up and out to the right: below and right of it is what is beaten
        corners = [(x(a), y(b)) for a, b in best]
        steps = [each for (_, low), (at, high) in itertools.pairwise(corners) for each in ((at, low), (at, high))]
        foot, end = (corners[0][0], frame.height - frame.bottom), (frame.width - frame.right, corners[-1][1])
        parts.append(line([foot, corners[0], *steps, end], "frontier"))
    chips = list(dict.fromkeys(row.chip for row in rows))
    drawn = sorted(known, key=lambda p: not p[0].on_front)
    for (row, a, b), place in zip(drawn, apart([(x(a), y(b)) for _, a, b in drawn], frame), strict=True):
        words = [f"{row.title}: {up[0]} {short(b)}, {across[0]} {short(a)}"]
        if row.error or (a, b) in best:
            words.append("failed" if row.error else "on the front of these two figures")
        if row.on_front:
            words.append("on the front of all figures")
        kind = chips.index(row.chip) % SHAPES
        if place != (x(a), y(b)):
            parts.append(el("line", x1=x(a), y1=y(b), x2=place[0], y2=place[1], class_="lead"))
        parts.append(shape(kind, *place, f"dot {'front' if row.on_front else 'beaten'} c{kind}", ", ".join(words)))
    many = len({(a, b) for a, b in best})
    sentence = f"{len(known)} builds, {many} on the front of these two figures"
    missing = [row.title for row, a, b in figures if not any(row is other for other, _, _ in known)]
    note = f"Not drawn, for want of a figure: {', '.join(missing)}." if missing else ""
    return chart(title, sentence, frame, parts, legend(chips), el("p", note, class_="muted") if note else None)


def front_of(points: Sequence[Point]) -> list[Point]:
    """Returns the points that no other beats in the plane, from left to right: less across, more up."""
    best: list[Point] = []
    for a, b in sorted(points, key=lambda point: (point[0], -point[1])):
        if not best or b > best[-1][1]:
            best.append((a, b))
    return best


def apart(points: Sequence[Point], frame: Frame) -> list[Point]:
    """Returns where the dots stand: each at its point, or at the nearest place where it hides no dot before it."""
    placed: list[Point] = []
    for x, y in points:
        rings = ((r, i * math.pi / 8) for r in range(0, 200, 8) for i in range(16 if r else 1))
        places = ((x + r * math.cos(turn), y + r * math.sin(turn)) for r, turn in rings)
        inside = (p for p in places if frame.left < p[0] < frame.width and 8 < p[1] < frame.height - frame.bottom)
        free = (p for p in inside if all(math.dist(p, other) >= ROOM for other in placed))
        placed.append(next(free, (x, y)))
    return placed


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
    front = (
        el("li", el("span", class_="key-line"), "front of these two figures: nothing drawn beats it"),
        el("li", "filled: nothing beats it in accuracy, latency and memory together"),
        el("li", "a dot that would hide another stands aside, on a thin line from its place"),
    )
    return el("ul", *items, *front, class_="legend")
