"""Error and cost of each layer, in the order of the network."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from anynpu.records.build import ChipForm, GraphForm, GraphNode
from anynpu.report.figures import amount, count, decibel
from anynpu.report.html.axes import Frame, Scale, axes, chart, more, padded, short
from anynpu.report.html.markup import Markup, el, join, table

WIDEST, APART = 40.0, 60.0
EXACT_DB = 200.0
"""From here a figure means that nothing differs; bars end at the largest of the others."""
Nodes = Sequence[GraphNode]


def layer_charts(chip: ChipForm, graph: GraphForm, least_sqnr: float | None) -> Markup:
    """Returns the charts of the graph's nodes; those without figures are left out."""
    nodes = graph.nodes
    devices = ["npu" if node.device == "npu" else "cpu" if chip.npu else "host" for node in nodes]
    wanted = (_errors(nodes, least_sqnr), _cost(nodes, graph.time_unit or ""), _macs(nodes))
    return join(_draw(columns, devices) for columns in wanted if columns is not None)


def _errors(nodes: Nodes, least: float | None) -> Columns | None:
    known = {i: min(n.sqnr_db, EXACT_DB) for i, n in enumerate(nodes) if n.sqnr_db is not None}
    if not known:
        return None
    rising = sorted(known, key=lambda i: known[i])
    usual = [value for value in known.values() if value < EXACT_DB] or [EXACT_DB]
    shown = {i: min(value, max(usual) * 1.1) for i, value in known.items()}
    worst = rising[: min(3, len(rising))]
    tips = {i: f"{_name(nodes[i])}: SQNR {_db(known[i])}" for i in known}
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


def _db(value: float) -> str:
    return "exact" if value >= EXACT_DB else f"{value:.1f} dB"


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
    return Columns("MACs by layer", f"multiply-accumulates; {count(int(total))} in all", known, tips)


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


def _draw(columns: Columns, devices: Sequence[str]) -> Markup:
    """Returns one column a layer, coloured by device, each of which opens its node in the graph."""
    frame = Frame(height=190, bottom=34)
    y = frame.y(min(0.0, *columns.values.values(), 0.0), padded([0.0, *columns.values.values()], 0.12)[1])
    step = (frame.width - frame.right - frame.left) / max(len(devices), 1)
    wide = min(max(step * 0.78, 0.8), WIDEST)
    parts = [*axes(frame, None, y, "layers in the order of the network", columns.said)]
    for i, value in columns.values.items():
        middle, top = frame.left + (i + 0.5) * step, min(y(value), y(0))
        parts.append(
            el(
                "rect",
                x=middle - wide / 2,
                y=top,
                width=wide,
                height=max(abs(y(0) - y(value)), 1.0),
                class_=f"bar {devices[i]}",
                data_node=i,
                data_tip=columns.tips[i],
            )
        )
    taken: list[float] = []
    for i, mark in columns.marks.items():
        top, middle = min(y(columns.values[i]), y(0)), frame.left + (i + 0.5) * step
        if all(abs(middle - other) > APART for other in taken):
            parts.append(el("text", mark, x=middle, y=top - 4, class_="mark mid"))
            taken.append(middle)
    parts += _limit(columns.limit, y, frame)
    return chart(columns.title, columns.said, frame, parts, more(*columns.listed) if columns.listed else None)


def _limit(limit: float | None, y: Scale, frame: Frame) -> list[Markup]:
    if limit is None or not y.low <= limit <= y.high:
        return []
    right = frame.width - frame.right
    return [
        el("line", x1=frame.left, x2=right, y1=y(limit), y2=y(limit), class_="limit"),
        el("text", f"gate {limit:g} dB", x=right, y=y(limit) - 4, class_="mark end"),
    ]
