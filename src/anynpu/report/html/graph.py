"""The placement-coloured graph of one chip: laid out here, drawn by the page's script from compact data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from anynpu.records.build import ChipForm, GraphForm, GraphNode, GraphTensor
from anynpu.report.figures import amount, count, decibel
from anynpu.report.html.grouped import Grouped, draw_grouped
from anynpu.report.html.layout import draw
from anynpu.report.html.markup import Child, Markup, data_block, el, table
from anynpu.report.html.stages import stages

STREAM = "SQNR dB in the stream"
BORDER = "io"
"""What is drawn for an input or an output of the model, which runs nowhere."""


@dataclass(frozen=True)
class Drawing:
    """What the script draws: nodes with their places, edges as corners, and each tensor once, all as rows of values."""

    chip: str
    npu: str
    unit: str
    size: tuple[int, int]
    nodes: tuple[list[object], ...]
    edges: tuple[list[object], ...]
    tensors: tuple[list[object], ...]
    card: tuple[int, int] = (0, 0)
    stages: tuple[list[object], ...] = ()
    links: tuple[list[object], ...] = ()


def graph_data(chip: ChipForm, graph: GraphForm) -> Drawing:
    """Returns what the script draws of a chip's graph."""
    inputs, outputs = _borders(chip, graph, "input"), _borders(chip, graph, "output")
    nodes = [*inputs, *graph.nodes, *outputs]
    devices = [*(BORDER for _ in inputs), *(node.device for node in graph.nodes), *(BORDER for _ in outputs)]
    tensors: dict[str, list[object]] = {}
    for name in dict.fromkeys(name for node in nodes for name in (*node.inputs, *node.outputs)):
        tensor = graph.tensors.get(name) or GraphTensor()
        ranges = [_range(value, tensor.channels) for value in (tensor.scale, tensor.zero_point)]
        errors = [_short(tensor.sqnr_db), _short(tensor.max_error)]
        tensors[name] = [name, tensor.shape, tensor.dtype or "", *ranges, *errors]
    index = {name: i for i, name in enumerate(tensors)}
    maker = {name: i for i, node in enumerate(nodes) for name in node.outputs}
    tensor_of: dict[tuple[int, int], str] = {}
    for i, node in enumerate(nodes):
        for name in node.inputs:
            if name in maker and maker[name] != i:
                tensor_of.setdefault((maker[name], i), name)
    edges, named = [(a, b, name) for (a, b), name in tensor_of.items()], stages(graph)
    # The stage of every node: the model's inputs are in the first, its outputs in the last
    inner = [number for number, each in enumerate(named) for _ in range(each.first, each.stop)]
    member = [*([0] * len(inputs)), *inner, *([len(named) - 1] * len(outputs))]
    pairs = [(a, b) for a, b, _ in edges]
    drawing = draw_grouped(member, pairs) if len(named) > 1 else draw(len(nodes), pairs)
    data = Drawing(
        chip.chip,
        chip.npu,
        graph.time_unit or "",
        (round(drawing.width), round(drawing.height)),
        tuple(
            [*_node(node, device, place, index), stage]
            for node, device, place, stage in zip(nodes, devices, drawing.nodes, member, strict=True)
        ),
        tuple([a, b, index[t], *_flat(drawing.edges[a, b])] for a, b, t in edges),
        tuple(tensors.values()),
    )
    if not isinstance(drawing, Grouped):
        return data
    return replace(
        data,
        card=(round(drawing.card[0]), round(drawing.card[1])),
        stages=tuple([s.name, s.shape, round(x), round(y)] for s, (x, y) in zip(named, drawing.cards, strict=True)),
        links=tuple([a, b, *_flat(corners)] for (a, b), corners in drawing.links.items()),
    )


def _borders(chip: ChipForm, graph: GraphForm, side: Literal["input", "output"]) -> list[GraphNode]:
    """Returns one node for each input or output of the model that the graph knows."""
    if not chip.chain:
        return []
    used = {name for node in graph.nodes for name in node.inputs}
    computed = {name for node in graph.nodes for name in node.outputs}
    if side == "input":
        names = [spec.name for spec in chip.chain[-1].inputs if spec.name in used - computed]
        return [GraphNode(name=name, kind=side, device="cpu", outputs=(name,)) for name in names]
    names = [spec.name for spec in chip.chain[-1].outputs if spec.name in computed]
    return [GraphNode(name=name, kind=side, device="cpu", inputs=(name,)) for name in names]


def _node(node: GraphNode, device: str, place: tuple[float, float], index: Mapping[str, int]) -> list[object]:
    return [
        node.name,
        node.kind,
        device,
        node.reason,
        node.macs,
        [index[name] for name in node.inputs],
        [index[name] for name in node.outputs],
        _short(node.sqnr_db),
        _short(node.time),
        round(place[0]),
        round(place[1]),
        _short(node.stream_sqnr_db),
    ]


def _range(value: float | tuple[float, ...] | None, channels: int | None) -> object:
    """Returns one number, or [least, most, how many] for a value per channel."""
    if not isinstance(value, tuple):
        return value
    if len(value) < 2:
        return value[0] if value else None
    return [min(value), max(value), channels or len(value)]


def _short(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.5g}")


def _flat(points: Sequence[tuple[float, float]]) -> list[int]:
    return [round(part) for point in points for part in point]


def _modes(data: Drawing) -> list[tuple[str, str]]:
    """Returns what the nodes of this graph can be coloured by, with the words for it."""
    cost = "NPU cycles (Vela estimate)" if data.unit == "cycles (Vela estimate)" else "Cost"
    figures = {
        "error": ("Error", 7),
        "stream": ("Error in the NPU's stream", 11),
        "time": (cost, 8),
        "macs": ("MACs", 4),
    }
    rows = data.nodes
    known = [(mode, title) for mode, (title, at) in figures.items() if any(row[at] not in (None, 0) for row in rows)]
    return [("placement", "Placement"), *known]


def graph_view(chip: ChipForm, graph: GraphForm, number: int) -> Markup:
    """Returns the frame of the graph, its data, and the same nodes as a table."""
    data = graph_data(chip, graph)
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
        el(
            "span",
            *(
                el("button", sign, type="button", class_=f"g-{name}", aria_label=label, title=label)
                for name, sign, label in (
                    ("out", "−", "Zoom out"),
                    ("in", "+", "Zoom in"),
                    ("fit", "Fit", "Show the whole graph"),
                    ("full", "Full screen", "Full screen"),
                )
            ),
            class_="g-zoom",
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
            aria_label=f"Graph of {chip.chip}. Arrow keys move along edges and layers, plus and minus zoom, "
            "0 shows the whole, Escape closes the details. The same nodes are in the table below.",
            aria_roledescription="graph",
        ),
        el(
            "aside",
            el("p", class_="muted"),
            class_="g-details",
            aria_live="polite",
        ),
        class_="g-body",
    )
    name, legend = f"graph-{number}", el("div", class_="g-legend")
    return el("div", tools, canvas, legend, data_block(name, vars(data)), class_="graph", data_graph=name)


def node_table(chip: ChipForm, graph: GraphForm) -> Markup:
    """Returns every node of the graph as a table, for readers without the drawing and for paper."""
    unit = graph.time_unit or "time"
    explained = any(node.reason for node in graph.nodes)
    streamed = any(node.stream_sqnr_db is not None for node in graph.nodes)
    chosen = any(node.variant for node in graph.nodes)
    rows: list[dict[str, Child]] = [
        {
            "#": i,
            "node": node.name,
            "kind": node.kind,
            "device": node.device.upper(),
            "MACs": count(node.macs),
            **({"kernels": node.variant} if chosen else {}),
            unit: amount(node.time),
            "SQNR dB": decibel(node.sqnr_db),
            **({STREAM: decibel(node.stream_sqnr_db)} if streamed else {}),
            **({"why not on the NPU": node.reason} if explained else {}),
        }
        for i, node in enumerate(graph.nodes, 1)
    ]
    body = table(rows, f"Nodes of {chip.chip}", ("#", "MACs", unit, "SQNR dB", STREAM), class_="sortable")
    return el("details", el("summary", f"All {len(rows)} nodes as a table"), body, class_="more")
