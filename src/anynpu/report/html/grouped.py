"""A drawing in two sizes of one plane: the stages of a network as cards, and the nodes of each inside its card."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from anynpu.report.html.layout import ACROSS, DOWN, HEIGHT, WIDTH, Drawing, Point, draw

CARD = 92.0
"""The height of a card when it is drawn as wide as a node."""
BETWEEN = 40.0
"""The room between two rows of such cards, where edges turn."""
ASPECTS = (0.7, 1.45, 2.5, 4.0, 6.0)
"""How wide the plan of the cards is tried, against its height; lanes next to the cards make it wider than asked for."""
Edge = tuple[int, int]


@dataclass(frozen=True)
class Grouped:
    """Where the nodes are, the corners of each edge, and the same of the cards and the links between them."""

    width: float
    height: float
    nodes: tuple[Point, ...]
    edges: Mapping[Edge, tuple[Point, ...]]
    card: Point
    cards: tuple[Point, ...]
    links: Mapping[Edge, tuple[Point, ...]]


def _shown(plan: Drawing) -> float:
    """Returns how large a card of the plan is in a frame of 1.5 to 1."""
    rows = round((plan.height + DOWN) / (HEIGHT + DOWN))
    return min(1.5 / plan.width, 1 / (rows * (CARD + BETWEEN) - BETWEEN))


def draw_grouped(member: Sequence[int], edges: Sequence[Edge]) -> Grouped:
    """Returns the drawing of nodes that each belong to a stage, the number of which is in `member`."""
    count = max(member) + 1
    inside = [[i for i, stage in enumerate(member) if stage == each] for each in range(count)]
    position = {node: i for nodes in inside for i, node in enumerate(nodes)}
    ratio = WIDTH / CARD
    drawn = [
        draw(
            len(inside[each]),
            [(position[a], position[b]) for a, b in edges if member[a] == member[b] == each],
            ratio,
            4,
        )
        for each in range(count)
    ]
    wide = max(ratio * (max(d.height for d in drawn) + 2 * HEIGHT), max(d.width for d in drawn) + 2 * ACROSS)
    scale = wide / WIDTH
    crossing = sorted({(member[a], member[b]) for a, b in edges if member[a] != member[b]})
    plan = max((draw(count, crossing, aspect, 4) for aspect in ASPECTS), key=_shown)

    def whole(point: Point) -> Point:
        """Returns a point of the plan, whose nodes are HEIGHT high and DOWN apart, in the plane of cards."""
        row, rest = divmod(point[1], HEIGHT + DOWN)
        y = rest * CARD / HEIGHT if rest <= HEIGHT else CARD + (rest - HEIGHT) * BETWEEN / DOWN
        return point[0] * scale, (row * (CARD + BETWEEN) + y) * scale

    cards = tuple(whole(point) for point in plan.nodes)
    links = {edge: tuple(map(whole, corners)) for edge, corners in plan.edges.items()}
    corner = [(x - d.width / 2, y - d.height / 2 + HEIGHT / 2) for (x, y), d in zip(cards, drawn, strict=True)]
    places: list[Point] = [(0.0, 0.0)] * len(member)
    routes: dict[Edge, tuple[Point, ...]] = {}
    for nodes, (left, top), d in zip(inside, corner, drawn, strict=True):
        for node, (x, y) in zip(nodes, d.nodes, strict=True):
            places[node] = (left + x, top + y)
        routes |= {(nodes[a], nodes[b]): tuple((left + x, top + y) for x, y in way) for (a, b), way in d.edges.items()}
    for a, b in edges:
        if member[a] != member[b]:
            (x, y), (to_x, to_y) = places[a], places[b]
            routes[a, b] = ((x, y + HEIGHT / 2), *links[member[a], member[b]], (to_x, to_y - HEIGHT / 2))
    size = whole((plan.width, plan.height))
    return Grouped(*size, tuple(places), routes, (wide, CARD * scale), cards, links)
