"""The placement-coloured graph of one chip: laid out here, drawn by the page's script from compact data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from anynpu.report.figures import count, decibel
from anynpu.report.html.layout import draw
from anynpu.report.html.markup import Markup, data_block, el, table

Nodes = Sequence[Mapping[str, Any]]
STREAM = "SQNR dB in the stream"
BORDER = "io"
"""What is drawn for an input or an output of the model, which runs nowhere."""


def graph_data(chip: Mapping[str, Any]) -> dict[str, Any]:
    """Returns what the script draws: nodes with their places, edges as corners, and each tensor once."""
    graph = chip["graph"]
    nodes = [*_borders(chip, "inputs"), *graph["nodes"], *_borders(chip, "outputs")]
    tensors = _tensors(nodes, graph.get("tensors") or {})
    index = {name: i for i, name in enumerate(tensors)}
    edges = _edges(nodes)
    drawing = draw(len(nodes), [(a, b) for a, b, _ in edges])
    return {
        "chip": chip["chip"],
        "npu": chip.get("npu") or "",
        "unit": graph.get("time_unit") or "",
        "size": [round(drawing.width), round(drawing.height)],
        "nodes": [_node(node, place, index) for node, place in zip(nodes, drawing.nodes, strict=True)],
        "edges": [[a, b, index[t], *_flat(drawing.edges[a, b])] for a, b, t in edges],
        "tensors": list(tensors.values()),
    }


def _borders(chip: Mapping[str, Any], side: str) -> list[dict[str, Any]]:
    """Returns one node for each input or output of the model that the graph knows."""
    chain = chip.get("chain") or [{}]
    other = "outputs" if side == "inputs" else "inputs"
    seen = {name for node in chip["graph"]["nodes"] for name in node.get(side) or ()}
    made = {name for node in chip["graph"]["nodes"] for name in node.get(other) or ()} if side == "inputs" else set()
    names = [spec["name"] for spec in chain[-1].get(side) or () if spec["name"] in seen - made]
    return [{"name": name, "kind": side[:-1], "device": BORDER, other: [name]} for name in names]


def _edges(nodes: Nodes) -> list[tuple[int, int, str]]:
    """Returns maker, user and tensor, once for each pair of nodes."""
    maker = {name: i for i, node in enumerate(nodes) for name in node.get("outputs") or ()}
    found: dict[tuple[int, int], str] = {}
    for i, node in enumerate(nodes):
        for name in node.get("inputs") or ():
            if name in maker and maker[name] != i:
                found.setdefault((maker[name], i), name)
    return [(a, b, name) for (a, b), name in found.items()]


def _node(node: Mapping[str, Any], place: tuple[float, float], index: Mapping[str, int]) -> list[Any]:
    return [
        str(node.get("name", "")),
        str(node.get("kind", "")),
        node.get("device", ""),
        node.get("reason") or "",
        node.get("macs"),
        [index[name] for name in node.get("inputs") or ()],
        [index[name] for name in node.get("outputs") or ()],
        _short(node.get("sqnr_db")),
        _short(node.get("time")),
        round(place[0]),
        round(place[1]),
        _short(node.get("stream_sqnr_db")),
    ]


def _tensors(nodes: Nodes, known: Mapping[str, Mapping[str, Any]]) -> dict[str, list[Any]]:
    names = dict.fromkeys(name for node in nodes for side in ("inputs", "outputs") for name in node.get(side) or ())
    return {name: _tensor(name, known.get(name) or {}) for name in names}


def _tensor(name: str, tensor: Mapping[str, Any]) -> list[Any]:
    return [
        name,
        tensor.get("shape"),
        tensor.get("dtype") or "",
        _range(tensor.get("scale"), tensor.get("channels")),
        _range(tensor.get("zero_point"), tensor.get("channels")),
        _short(tensor.get("sqnr_db")),
        _short(tensor.get("max_error")),
    ]


def _range(value: Any, channels: int | None) -> Any:
    """Returns one number, or [least, most, how many] for a value per channel."""
    if not isinstance(value, list):
        return value
    if len(value) < 2:
        return value[0] if value else None
    return [min(value), max(value), channels or len(value)]


def _short(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.5g}")


def _flat(points: Sequence[tuple[float, float]]) -> list[int]:
    return [round(part) for point in points for part in point]


def _modes(data: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Returns what the nodes of this graph can be coloured by, with the words for it."""
    cost = "NPU cycles (Vela estimate)" if data["unit"] == "cycles (Vela estimate)" else "Cost"
    figures = {
        "error": ("Error", 7),
        "stream": ("Error in the NPU's stream", 11),
        "time": (cost, 8),
        "macs": ("MACs", 4),
    }
    rows = data["nodes"]
    known = [(mode, title) for mode, (title, at) in figures.items() if any(row[at] not in (None, 0) for row in rows)]
    return [("placement", "Placement"), *known]


def graph_view(chip: Mapping[str, Any], number: int) -> Markup:
    """Returns the frame of the graph, its data, and the same nodes as a table."""
    data = graph_data(chip)
    chosen = [el("option", title, value=mode) for mode, title in _modes(data)]
    tools = el(
        "div",
        el("label", "Colour by ", el("select", *chosen, class_="g-mode")),
        el(
            "input",
            type="search",
            class_="g-search",
            placeholder="Find a node or tensor",
            aria_label="Find a node or tensor",
        ),
        el("span", class_="g-found", role="status"),
        el("span", class_="spacer"),
        *(
            el("button", sign, type="button", class_=f"g-{name}", aria_label=label, title=label)
            for name, sign, label in (
                ("out", "−", "Zoom out"),
                ("in", "+", "Zoom in"),
                ("fit", "Fit", "Show the whole graph"),
                ("full", "Full screen", "Full screen"),
            )
        ),
        class_="g-tools",
    )
    canvas = el(
        "div",
        el(
            "div",
            class_="g-canvas",
            tabindex=0,
            role="application",
            aria_label=_instructions(chip),
            aria_roledescription="graph",
        ),
        el(
            "aside",
            el("p", "Click a node, or move with the arrow keys.", class_="muted"),
            class_="g-details",
            aria_live="polite",
        ),
        class_="g-body",
    )
    legend = el("div", class_="g-legend")
    return el(
        "div", tools, canvas, legend, data_block(f"graph-{number}", data), class_="graph", data_graph=f"graph-{number}"
    )


def _instructions(chip: Mapping[str, Any]) -> str:
    return (
        f"Graph of {chip['chip']}. Arrow keys move along edges and layers, plus and minus zoom, 0 shows the whole, "
        "Escape closes the details. The same nodes are in the table below."
    )


def node_table(chip: Mapping[str, Any]) -> Markup:
    """Returns every node of the graph as a table, for readers without the drawing and for paper."""
    graph = chip["graph"]
    unit = graph.get("time_unit") or "time"
    rows = [
        {
            "#": i,
            "node": node.get("name", ""),
            "kind": node.get("kind", ""),
            "device": (node.get("device") or "").upper(),
            "MACs": count(node.get("macs")),
            unit: "-" if node.get("time") is None else f"{node['time']:,.4g}",
            "SQNR dB": decibel(node.get("sqnr_db")),
            STREAM: decibel(node.get("stream_sqnr_db")),
            "why not on the NPU": node.get("reason") or "",
        }
        for i, node in enumerate(graph["nodes"], 1)
    ]
    if not any(row["why not on the NPU"] for row in rows):
        for row in rows:
            del row["why not on the NPU"]
    if not any(node.get("stream_sqnr_db") is not None for node in graph["nodes"]):
        for row in rows:
            del row[STREAM]
    body = table(rows, f"Nodes of {chip['chip']}", ("#", "MACs", unit, "SQNR dB", STREAM), class_="sortable")
    return el("details", el("summary", f"All {len(rows)} nodes as a table"), body, class_="more")
