"""The stages of a network: stretches of the order in which it runs that few tensors cross."""

from __future__ import annotations

import itertools
import re
from collections import Counter
from dataclasses import dataclass

from anynpu.records.build import GraphForm, GraphNode, GraphTensor

SINGLE = 40
"""Up to this many nodes are seen at a glance one by one."""
USUAL, MOST_STAGES = 13, 20


@dataclass(frozen=True)
class Stage:
    """Layers `first` to `stop` (exclusive): what their names have in common, and the shape of what they hand on."""

    name: str
    shape: str
    first: int
    stop: int


def stages(graph: GraphForm) -> list[Stage]:
    """Returns the stages of a network in order; one for a network that is small enough to be seen at a glance."""
    nodes = graph.nodes
    if not nodes:
        return []
    cuts = [0, *_cuts(graph), len(nodes)] if len(nodes) > SINGLE else [0, len(nodes)]
    sizes = Counter(tuple(parts[:i]) for parts in map(_parts, (n.name for n in nodes)) for i in range(1, len(parts)))
    whole = []
    for first, stop in itertools.pairwise(cuts):
        shape = _output(graph, nodes[stop - 1]).shape or ()
        dims = shape[1:] if len(shape) > 1 and shape[0] == 1 else shape
        # The block that a stage is, or the first and the last of those that it goes through
        ends = [_parts(nodes[first].name), _parts(nodes[stop - 1].name)]
        names = []
        for parts in filter(None, ends):
            # the outermost part of a layer's name that is not the name of half the network
            prefixes = (tuple(parts[:depth]) for depth in range(1, len(parts)))
            block = next((prefix[-1] for prefix in prefixes if sizes[prefix] <= 2 * USUAL), parts[-1])
            names.append(re.sub(r"_output_\d+$", "", block))
        names = list(dict.fromkeys(names))
        stems = {re.sub(r"\d+$", "", name) for name in names}
        if len(names) == 2 and len(stems) == 1:
            names[1] = names[1].removeprefix(stems.pop())  # model.7 to model.9 is model.7–9
        whole.append(Stage("–".join(names), " × ".join(map(str, dims)), first, stop))
    return whole


def _cuts(graph: GraphForm) -> list[int]:
    """Returns the first layer of each stage but the first: the cheapest cuts that leave stages of about one size.

    A cut costs what crosses it, more inside a block that has a name, and less where the picture changes its size.
    """
    nodes, count = graph.nodes, len(graph.nodes)
    usual = max(USUAL, count / MOST_STAGES)
    changes = [0] * (count + 1)
    maker = {name: i for i, node in enumerate(nodes) for name in node.outputs}
    last = {name: i for i, node in enumerate(nodes) for name in node.inputs if name in maker}
    for name, user in last.items():
        if user > maker[name]:
            changes[maker[name] + 1] += 1
            changes[user + 1] -= 1
    # Of every place before a layer: tensors that cross it, names that both sides share, and 1 for one size.
    crossing, price = list(itertools.accumulate(changes)), [0.0]
    for i, (a, b) in enumerate(itertools.pairwise(nodes), start=1):
        pairs = zip(_parts(a.name), _parts(b.name), strict=False)
        shared = sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs))
        price.append(crossing[i] + 0.7 * shared + float(_size(graph, a) == _size(graph, b)))
    cheapest, before = [0.0] + [float("inf")] * count, [0] * (count + 1)
    for stop in range(1, count + 1):
        for first in range(max(0, stop - int(2 * usual)), stop):
            uneven = 8 * ((stop - first - usual) / usual) ** 2
            total = cheapest[first] + uneven + (price[stop] if stop < count else 0.0)
            if total < cheapest[stop]:
                cheapest[stop], before[stop] = total, first
    cuts, stop = [], count
    while stop := before[stop]:
        cuts.append(stop)
    return cuts[::-1]


def _parts(name: str) -> list[str]:
    """Returns the parts of a layer's name: /model.6/m.1/conv gives model.6, m.1 and conv."""
    return [part for part in name.split("/") if part]


def _output(graph: GraphForm, node: GraphNode) -> GraphTensor:
    return (graph.tensors.get(node.outputs[0]) if node.outputs else None) or GraphTensor()


def _size(graph: GraphForm, node: GraphNode) -> tuple[int, ...]:
    """Returns height and width of what a layer makes, where its layout names them."""
    tensor = _output(graph, node)
    axes = [tensor.layout.find(axis) for axis in "HW"]
    shape = tensor.shape or ()
    return tuple(shape[axis] for axis in axes) if min(axes) >= 0 and max(axes) < len(shape) else ()
