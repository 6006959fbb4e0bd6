"""Error and cost of each layer, in the order of the network."""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from anynpu.records.build import ChipForm, GraphForm, GraphNode
from anynpu.report.figures import amount, count, decibel
from anynpu.report.html.axes import Frame, axes, chart, more, padded, short
from anynpu.report.html.markup import Markup, el, join, table
from anynpu.report.html.stages import Stage, stages

WIDEST = 40.0
NAMED = 60
"""Up to this many bars each has its name below it; of more, each stage has."""
LETTER, BOLD = 6.2, 7.2
"""How wide a letter is at most, of a name and of a mark."""
LONGEST = 20
EXACT_DB = 200.0
"""From here a figure means that nothing differs; bars end at the largest of the others."""
Nodes = Sequence[GraphNode]


def layer_charts(chip: ChipForm, graph: GraphForm, least_sqnr: float | None) -> Markup:
    """Returns the charts of the graph's nodes; those without figures are left out."""
    nodes = graph.nodes
    devices = ["npu" if node.device == "npu" else "cpu" if chip.npu else "host" for node in nodes]
    wanted = (_errors(nodes, least_sqnr), _cost(nodes, graph.time_unit or ""), _macs(nodes))
    named = stages(graph)
    return join(_draw(columns, nodes, devices, named) for columns in wanted if columns is not None)


def _errors(nodes: Nodes, least: float | None) -> Columns | None:
    known = {i: min(n.sqnr_db, EXACT_DB) for i, n in enumerate(nodes) if n.sqnr_db is not None}
    if not known:
        return None
    rising = sorted(known, key=lambda i: known[i])
    usual = [value for value in known.values() if value < EXACT_DB] or [EXACT_DB]
    shown = {i: min(value, max(usual) * 1.1) for i, value in known.items()}
    worst = rising[: min(3, len(rising))]
    tips = {
        i: f"{_name(nodes[i])}: SQNR {'exact' if value >= EXACT_DB else f'{value:.1f} dB'}"
        for i, value in known.items()
    }
    rows = [{"node": nodes[i].name, "kind": nodes[i].kind, "SQNR dB": decibel(known[i])} for i in rising[:10]]
    return Columns(
        "Error by layer",
        "SQNR in dB against the float model; short bars are the layers that lose most",
        shown,
        tips,
        marks={i: f"{known[i]:.1f} dB" for i in worst},
        limit=least,
        listed=("The ten worst layers", table(rows, "Layers with the lowest SQNR", ("SQNR dB",))),
    )


def _cost(nodes: Nodes, unit: str) -> Columns | None:
    known = {i: float(n.time) for i, n in enumerate(nodes) if n.time is not None}
    total = sum(known.values())
    if not total:
        return None
    falling = sorted(known, key=lambda i: -known[i])
    tips = {i: f"{_name(nodes[i])}: {amount(known[i])} {unit}, {known[i] / total:.1%}" for i in known}
    rows = [
        {
            "node": nodes[i].name,
            "kind": nodes[i].kind,
            "device": nodes[i].device.upper(),
            **({"kernels": nodes[i].variant} if any(node.variant for node in nodes) else {}),
            unit or "time": amount(known[i]),
            "share": f"{known[i] / total:.1%}",
        }
        for i in falling[:10]
    ]
    return Columns(
        "Cost by layer",
        f"{unit}; {short(total)} in all",
        known,
        tips,
        marks={i: f"{known[i] / total:.0%}" for i in falling[:3] if known[i] / total >= 0.05},
        listed=("The ten costliest layers", table(rows, "Layers that take most", (unit or "time", "share"))),
    )


def _macs(nodes: Nodes) -> Columns | None:
    known = {i: float(n.macs) for i, n in enumerate(nodes) if n.macs}
    total = sum(known.values())
    if not total:
        return None
    tips = {i: f"{_name(nodes[i])}: {count(int(value))} MACs, {value / total:.1%}" for i, value in known.items()}
    falling = sorted(known, key=lambda i: -known[i])
    marks = {i: f"{known[i] / total:.0%}" for i in falling[:3] if known[i] / total >= 0.05}
    return Columns("MACs by layer", f"multiply-accumulates; {count(int(total))} in all", known, tips, marks)


def _name(node: GraphNode) -> str:
    return f"{node.kind} {node.name}".strip()


@dataclass(frozen=True)
class Columns:
    """What one chart of layers shows."""

    title: str
    said: str
    values: Mapping[int, float]
    tips: Mapping[int, str]
    marks: Mapping[int, str] = field(default_factory=dict)
    limit: float | None = None
    listed: tuple[str, Markup] | None = None


def short_name(node: GraphNode) -> str:
    """Returns as many of the last parts of a layer's name as have room: they tell it from its neighbours."""
    parts = [part for part in re.sub(r"_output_\d+", "", node.name).split("/") if part] or [node.kind]
    ends = ("/".join(parts[i:]) for i in range(len(parts)))
    return next((end for end in ends if len(end) <= LONGEST), f"…{parts[-1][1 - LONGEST :]}")


def _draw(columns: Columns, nodes: Nodes, devices: Sequence[str], named: Sequence[Stage]) -> Markup:
    """Returns one column a layer, coloured by device, each of which opens its node in the graph."""
    one_by_one = len(nodes) <= NAMED
    plain = Frame(right=92 if columns.limit is not None else 18)
    step = (plain.width - plain.right - plain.left) / max(len(nodes), 1)
    middles = [plain.left + (i + 0.5) * step for i in range(len(nodes))]
    marks = columns.marks if one_by_one else {i: f"{short_name(nodes[i])} {m}" for i, m in columns.marks.items()}
    placed = _placed(marks, middles, plain)
    rows = max((mark.row for mark in placed.values()), default=-1) + 1
    longest = max(len(short_name(node)) for node in nodes)
    top, below = 26.0 + 16 * rows, 16 + LETTER * longest if one_by_one else 44.0
    frame = replace(plain, height=top + 134 + below, top=top, bottom=below)
    y = frame.y(min(0.0, *columns.values.values(), 0.0), padded([0.0, *columns.values.values()], 0.04)[1])
    parts = [*axes(frame, None, y), el("text", columns.said, x=frame.left, y=13, class_="label")]
    for i, value in columns.values.items():
        high = min(y(value), y(0))
        if i in placed:
            mark, level = placed[i], 30.0 + 16 * placed[i].row
            parts.append(el("line", x1=middles[i], x2=middles[i], y1=level + 4, y2=high, class_="lead"))
            parts.append(el("text", marks[i], x=(mark.left + mark.right) / 2, y=level, class_="mark mid"))
        wide = min(max(step * 0.78, 0.8), WIDEST)
        size = {"x": middles[i] - wide / 2, "y": high, "width": wide, "height": max(abs(y(0) - y(value)), 1.0)}
        parts.append(el("rect", **size, class_=f"bar {devices[i]}", data_node=i, data_tip=columns.tips[i]))
    if columns.limit is not None and y.low <= columns.limit <= y.high:  # the gate of the outputs, named on the right
        right, level = frame.width - frame.right, y(columns.limit)
        words = ("gate of the", f"outputs, {columns.limit:g} dB")
        parts.append(el("line", x1=frame.left, x2=right, y1=level, y2=level, class_="limit"))
        parts += [el("text", word, x=right + 3, y=level + 4 + 12 * i, class_="name") for i, word in enumerate(words)]
    if one_by_one:
        base, both = frame.height - frame.bottom + 8, zip(nodes, middles, strict=True)
        parts += [el("text", short_name(node), x=middle, y=base, class_="name turned") for node, middle in both]
    else:
        parts += _bands(named, step, frame)
    return chart(columns.title, columns.said, frame, parts, more(*columns.listed) if columns.listed else None)


@dataclass(frozen=True)
class Mark:
    """A label above all bars: from left to right, in which row, and where the line from it to its bar goes down."""

    left: float
    right: float
    row: int
    line: float

    def disturbs(self, other: Mark) -> bool:
        """Whether it touches the other, or the line of the other would go through it."""
        across = self.left < other.right and other.left < self.right
        return (self.row == other.row and across) or (self.row > other.row and self.left < other.line < self.right)


def _placed(marks: Mapping[int, str], middles: Sequence[float], frame: Frame) -> dict[int, Mark]:
    """Returns where the marks stand: in as few rows as there can be, none over another or over another's line."""
    choices = [
        [
            Mark(left, left + wide, row, middles[i])
            for row in range(len(marks))
            for left in (middles[i] - wide / 2, middles[i] - 4, middles[i] + 4 - wide)
            if left >= frame.left - 4 and left + wide <= frame.width
        ]
        for i, wide in ((i, BOLD * len(text) + 6) for i, text in marks.items())
    ]
    plans = sorted(itertools.product(*choices), key=lambda plan: sum(mark.row for mark in plan))
    whole = (plan for plan in plans if not any(a.disturbs(b) for a, b in itertools.permutations(plan, 2)))
    return dict(zip(marks, next(whole, ()), strict=False))


def _bands(named: Sequence[Stage], step: float, frame: Frame) -> list[Markup]:
    """Returns a line below the bars of each stage, and its number and name in two rows by turns."""
    parts, right = [], frame.width - frame.right
    base = frame.height - frame.bottom
    for number, stage in enumerate(named):
        start, stop = frame.left + stage.first * step, frame.left + stage.stop * step
        beyond = frame.left + named[number + 1].stop * step if number + 1 < len(named) else right
        letters = max(1, int((beyond - start) / LETTER) - 1)
        words = f"{number + 1} {stage.name}"
        shown = words if len(words) <= letters else f"{words[: letters - 1]}…"
        tip = f"stage {number + 1}: {stage.name}, {stage.stop - stage.first} layers"
        parts.append(el("line", x1=start + 1, x2=stop - 1, y1=base + 6, y2=base + 6, class_="band", data_tip=tip))
        parts.append(el("text", shown, x=start, y=base + 20 + 15 * (number % 2), class_="name", data_tip=tip))
    return parts
