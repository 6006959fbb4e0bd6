"""A layered drawing of a graph: longest-path layers, barycentre order, layers folded into columns.

A deep network drawn straight down is a thread that no screen holds. Its layers are cut where few edges cross and set in
columns side by side, as a newspaper sets text, so that the whole fits a landscape page.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

WIDTH, HEIGHT = 168.0, 44.0
ACROSS, DOWN, GUTTER = 24.0, 34.0, 64.0
LANE = 14.0
"""The room that an edge takes which passes a layer without a node of its own."""
Point = tuple[float, float]


@dataclass
class Layered:
    """A graph with one node in every layer that an edge passes; those above `count` are such."""

    count: int
    layers: list[list[int]]
    above: dict[int, list[int]] = field(default_factory=dict)
    below: dict[int, list[int]] = field(default_factory=dict)
    paths: dict[tuple[int, int], list[int]] = field(default_factory=dict)

    def half(self, node: int) -> float:
        return (WIDTH if node < self.count else LANE) / 2


@dataclass(frozen=True)
class Drawing:
    """Where the middle of each node is, and the corners of each edge."""

    width: float
    height: float
    nodes: tuple[Point, ...]
    edges: Mapping[tuple[int, int], tuple[Point, ...]]
    columns: int


def draw(count: int, edges: Sequence[tuple[int, int]], aspect: float = 1.45, fold_from: int = 9) -> Drawing:
    """Returns the drawing of `count` nodes, in one column below `fold_from` layers.

    Edges that would close a circle are drawn but do not order anything.
    """
    whole = sorted({(a, b) for a, b in edges if a != b})
    forward = _acyclic(count, whole)
    graph = _split(count, forward, _ranks(count, forward))
    # Sorts each layer by the middle of its neighbours, down and up in turn
    place = {node: float(i) for layer in graph.layers for i, node in enumerate(layer)}
    for sweep in range(8):
        down = sweep % 2 == 0
        near = graph.above if down else graph.below
        for layer in graph.layers if down else reversed(graph.layers):
            middle = {n: _mean([place[m] for m in near[n]]) if near.get(n) else place[n] for n in layer}
            layer.sort(key=lambda n: middle[n])
            place.update({node: float(i) for i, node in enumerate(layer)})
    # Each node's x: near the middle of its neighbours, in order, with room between
    x: dict[int, float] = {}
    for layer in graph.layers:
        _spread(graph, layer, dict.fromkeys(layer, 0.0), x)
    for sweep in range(6):
        down = sweep % 2 == 0
        near = graph.above if down else graph.below
        for layer in graph.layers if down else reversed(graph.layers):
            wish = {n: _mean([x[m] for m in near[n]]) if near.get(n) else x[n] for n in layer}
            _spread(graph, layer, wish, x)
    back = [edge for edge in whole if edge not in set(forward)]
    span = max((x[n] + graph.half(n) for n in x), default=0.0) - min((x[n] - graph.half(n) for n in x), default=0.0)
    cuts = _cuts(graph, span, aspect) if len(graph.layers) >= fold_from else [0]
    return _fold(graph, x, back, cuts)


def _acyclic(count: int, edges: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Returns the edges without those that close a circle; networks have none, damaged records may."""
    if all(a < b for a, b in edges):
        return list(edges)
    after: dict[int, list[int]] = {}
    for a, b in edges:
        after.setdefault(a, []).append(b)
    state, back = [0] * count, set()
    for root in range(count):
        stack = [(root, iter(after.get(root, ())))] if not state[root] else []
        state[root] = state[root] or 1
        while stack:
            node, rest = stack[-1]
            step = next(rest, None)
            if step is None:
                state[node] = 2
                stack.pop()
            elif state[step] == 1:
                back.add((node, step))
            elif not state[step]:
                state[step] = 1
                stack.append((step, iter(after.get(step, ()))))
    return [edge for edge in edges if edge not in back]


def _ranks(count: int, edges: Sequence[tuple[int, int]]) -> list[int]:
    """Returns each node's layer: one below its lowest input; a node without inputs stands just above its first user."""
    after: dict[int, list[int]] = {}
    missing = [0] * count
    for a, b in edges:
        after.setdefault(a, []).append(b)
        missing[b] += 1
    sources = [node for node in range(count) if not missing[node]]
    rank, ready = [0] * count, list(sources)
    while ready:
        node = ready.pop()
        for step in after.get(node, ()):
            rank[step] = max(rank[step], rank[node] + 1)
            missing[step] -= 1
            if not missing[step]:
                ready.append(step)
    for node in sources:
        if node in after:
            rank[node] = min(rank[step] for step in after[node]) - 1
    return rank


def _split(count: int, edges: Sequence[tuple[int, int]], rank: Sequence[int]) -> Layered:
    graph = Layered(count, [[] for _ in range(max(rank, default=-1) + 1)])
    for node in range(count):
        graph.layers[rank[node]].append(node)
    fresh = count
    for a, b in edges:
        path = [a]
        for layer in range(rank[a] + 1, rank[b]):
            graph.layers[layer].append(fresh)
            path.append(fresh)
            fresh += 1
        path.append(b)
        graph.paths[a, b] = path
        for upper, lower in itertools.pairwise(path):
            graph.below.setdefault(upper, []).append(lower)
            graph.above.setdefault(lower, []).append(upper)
    return graph


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _spread(graph: Layered, layer: Sequence[int], wish: Mapping[int, float], x: dict[int, float]) -> None:
    """Puts a layer's nodes as near to their wishes as order and room allow (pool adjacent violators)."""
    offsets, offset = [], 0.0
    for i, node in enumerate(layer):
        offset += graph.half(layer[i - 1]) + ACROSS + graph.half(node) if i else 0.0
        offsets.append(offset)
    blocks: list[tuple[float, int]] = []
    for node, room in zip(layer, offsets, strict=True):
        total, size = wish[node] - room, 1
        while blocks and blocks[-1][0] / blocks[-1][1] >= total / size:
            before, many = blocks.pop()
            total, size = total + before, size + many
        blocks.append((total, size))
    starts = [total / size for total, size in blocks for _ in range(size)]
    for node, start, room in zip(layer, starts, offsets, strict=True):
        x[node] = start + room


def _cuts(graph: Layered, width: float, aspect: float) -> list[int]:
    """Returns the first layer of each column."""
    layers, step = len(graph.layers), HEIGHT + DOWN
    columns = max(1, round(math.sqrt(aspect * layers * step / (width + GUTTER))))
    if columns == 1:
        return [0]
    tall, cuts = layers / columns, [0]
    for column in range(1, columns):
        goal = round(column * tall)
        near = range(max(cuts[-1] + 1, goal - int(tall / 5)), min(layers - 1, goal + int(tall / 5)) + 1)
        if near:
            cuts.append(min(near, key=lambda i: (len(graph.layers[i]), abs(i - goal))))
    return cuts


def _fold(graph: Layered, x: Mapping[int, float], back: Sequence[tuple[int, int]], cuts: Sequence[int]) -> Drawing:
    if not graph.count:
        return Drawing(0, 0, (), {}, 0)
    at: dict[int, Point] = {}
    column_of: dict[int, int] = {}
    left, gutters = 0.0, []
    for column, (first, last) in enumerate(zip(cuts, [*cuts[1:], len(graph.layers)], strict=True)):
        inside = [n for layer in graph.layers[first:last] for n in layer]
        low = min(x[n] - graph.half(n) for n in inside)
        gutters.append(left - GUTTER / 2)
        for i, layer in enumerate(graph.layers[first:last]):
            for node in layer:
                at[node] = (x[node] - low + left, HEIGHT / 2 + i * (HEIGHT + DOWN))
                column_of[node] = column
        left = max(at[n][0] + graph.half(n) for n in inside) + GUTTER
    edges = {edge: _route(path, at, column_of, gutters, graph.count) for edge, path in graph.paths.items()}
    edges |= {(a, b): (at[a], at[b]) for a, b in back}
    return Drawing(
        left - GUTTER,
        max(y for _, y in at.values()) + HEIGHT / 2,
        tuple(at[n] for n in range(graph.count)),
        edges,
        len(cuts),
    )


def _route(
    path: Sequence[int], at: Mapping[int, Point], column: Mapping[int, int], gutters: Sequence[float], count: int
) -> tuple[Point, ...]:
    """Returns an edge's corners: out below, through its lanes, in above; between columns, up through the gutter."""
    points: list[Point] = []
    for node, step in itertools.pairwise(path):
        (x, y), (to_x, to_y) = at[node], at[step]
        points.append((x, y + HEIGHT / 2 if node < count else y))
        if column[node] != column[step]:
            low, high = y + HEIGHT / 2 + DOWN / 2, to_y - HEIGHT / 2 - DOWN / 2
            gutter = gutters[column[step]]
            points += [(x, low), (gutter, low), (gutter, high), (to_x, high)]
        if step == path[-1]:
            points.append((to_x, to_y - HEIGHT / 2))
    return tuple(points)
