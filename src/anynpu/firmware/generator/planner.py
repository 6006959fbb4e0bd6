"""Where each tensor lies in the arena: liveness, shared memory of operators that work in place, and first fit."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence
from dataclasses import dataclass

from anynpu.firmware.generator.graph import ABSENT, Graph
from anynpu.firmware.generator.layer import Layer

ALIGNMENT = 4
ATTEMPTS = 400
MOST_WORK = 2_000_000
"""How many pairs of blocks that meet may be looked at for a better layout: nets of thousands of steps try fewer."""


@dataclass(frozen=True)
class Block:
    """Bytes that are needed from step `first` to step `last`, both included."""

    key: str
    bytes: int
    first: int
    last: int


@dataclass(frozen=True)
class Plan:
    """The offset of every tensor and of every layer's scratch, by number; `bound` is the minimum of any layout."""

    tensors: dict[int, int]
    scratch: dict[int, int]
    bytes: int
    bound: int
    peak_step: int
    in_place: int


def plan(graph: Graph, layers: Sequence[Layer], enough: int | None = None) -> Plan:
    """Returns the smaller of the layouts with and without operators in place; one of `enough` bytes will do."""
    bound, peak = live_bytes(graph, layers)
    options = []
    for sharing in (True, False):
        owners, shared = _owners(graph, layers, sharing)
        offsets, total = _place(_blocks(graph, layers, owners, scratch=True), enough)
        tensors = {number: offsets[f"t{owner}"] for number, owner in owners.items()}
        # What a layer reads of its first input and behind it, all of it lies in the arena.
        for layer in layers:
            if layer.reads_past:
                number = layer.node.inputs[0]
                total = max(total, _aligned(tensors[number] + graph.tensors[number].bytes + layer.reads_past))
        scratch = {i: offsets[f"s{i}"] for i, layer in enumerate(layers) if layer.scratch}
        options.append(Plan(tensors, scratch, total, bound, peak, shared))
    return min(options, key=lambda p: p.bytes)


def with_room(graph: Graph, layers: Sequence[Layer]) -> list[Layer]:
    """Returns the layers, those with a roomier form in it where the arena does not grow for it."""
    limit = plan(graph, layers).bytes
    chosen = list(layers)
    for step, layer in enumerate(layers):
        if layer.roomy:
            trial = [*chosen[:step], layer.roomy, *chosen[step + 1 :]]
            if plan(graph, trial, limit).bytes <= limit:
                chosen = trial
    return chosen


def live_bytes(graph: Graph, layers: Sequence[Layer]) -> tuple[int, int]:
    """Returns the maximum of bytes of tensors that live at once when nothing works in place, and the step where."""
    owners = _owners(graph, layers, False)[0]
    blocks = _blocks(graph, layers, owners, scratch=False)
    grown = [0] * (len(layers) + 2)
    for block in blocks:
        grown[block.first] += block.bytes
        grown[block.last + 1] -= block.bytes
    totals = list(itertools.accumulate(grown))[: len(layers)]
    best = max(range(len(totals)), key=totals.__getitem__, default=0)
    return (totals[best] if totals else 0), best


def _owners(graph: Graph, layers: Sequence[Layer], sharing: bool) -> tuple[dict[int, int], int]:
    """Returns for each tensor the one whose memory it is in, and how many operators work in place."""
    owners = {number: number for number in graph.inputs}
    needed = {number: step for step, layer in enumerate(layers) for number in layer.node.inputs}
    needed |= dict.fromkeys(graph.outputs, len(layers))
    ends = {number: needed.get(number, -1) for number in graph.inputs}  # of what lies in the memory of each owner
    shared = 0

    def give(number: int, owner: int) -> None:
        owners[number] = owner
        ends[owner] = max(ends.get(owner, -1), needed.get(number, -1))

    for step, layer in enumerate(layers):
        for number in layer.node.outputs:
            owners[number] = number
            ends[number] = needed.get(number, -1)
        if layer.alias is not None and layer.alias in owners:
            give(layer.node.outputs[0], owners[layer.alias])
        elif sharing:
            for source in layer.over:
                if source in owners and ends[owners[source]] <= step:
                    give(layer.node.outputs[0], owners[source])
                    shared += 1
                    break
    constant = {n for n in owners if graph.tensors[n].constant}
    constant |= {a.node.outputs[0] for a in layers if a.alias is not None and a.alias not in owners}
    return {n: o for n, o in owners.items() if n not in constant}, shared


def _blocks(graph: Graph, layers: Sequence[Layer], owners: dict[int, int], scratch: bool) -> list[Block]:
    first: dict[int, int] = {}
    last: dict[int, int] = {}
    size: dict[int, int] = {}

    def touch(number: int, step: int) -> None:
        owner = owners.get(number, ABSENT)
        if owner != ABSENT:
            first[owner] = min(first.get(owner, step), step)
            last[owner] = max(last.get(owner, step), step)
            size[owner] = max(size.get(owner, 0), graph.tensors[number].bytes)

    for number in graph.inputs:
        touch(number, 0)
    for step, layer in enumerate(layers):
        for number in (*layer.node.inputs, *layer.node.outputs):
            touch(number, step)
    for number in graph.outputs:
        touch(number, len(layers))
    blocks = [Block(f"t{n}", _aligned(size[n]), first[n], last[n]) for n in first]
    if scratch:
        blocks += [Block(f"s{i}", _aligned(a.scratch), i, i) for i, a in enumerate(layers) if a.scratch]
    return blocks


def _aligned(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT


def _place(blocks: list[Block], enough: int | None = None) -> tuple[dict[str, int], int]:
    """Returns offsets by first fit; of several orders, the one that needs least, or the first within `enough`."""
    meeting = _meetings(blocks)
    floor = max((a.bytes + sum(b.bytes for b in meeting[a.key] if b.first <= a.first) for a in blocks), default=0)
    orders = [
        sorted(blocks, key=lambda b: (-b.bytes, b.first, b.key)),
        sorted(blocks, key=lambda b: (-b.bytes * (b.last - b.first + 1), b.key)),
        sorted(blocks, key=lambda b: (b.first - b.last, -b.bytes, b.key)),
        sorted(blocks, key=lambda b: (b.first, -b.bytes, b.key)),
    ]
    best = min((_first_fit(order, meeting) for order in orders), key=lambda layout: layout[1])
    out_of_reach = enough is not None and floor > enough
    draw = random.Random(0)  # the same layout for the same model
    order = list(orders[0])
    work = sum(map(len, meeting.values()))
    for _ in range(min(ATTEMPTS, MOST_WORK // max(work, 1)) if len(blocks) > 2 and not out_of_reach else 0):
        if best[1] <= max(floor, enough or 0):
            break
        trial = list(order)
        i, j = draw.randrange(len(trial)), draw.randrange(len(trial))
        trial[i], trial[j] = trial[j], trial[i]
        layout = _first_fit(trial, meeting)
        if layout[1] <= best[1]:
            best, order = layout, trial
    return best


def _meetings(blocks: list[Block]) -> dict[str, list[Block]]:
    """Returns for each block those that are needed at one of its steps."""
    meeting: dict[str, list[Block]] = {block.key: [] for block in blocks}
    alive: list[Block] = []
    for block in sorted(blocks, key=lambda each: each.first):
        alive = [other for other in alive if other.last >= block.first]
        for other in alive:
            meeting[block.key].append(other)
            meeting[other.key].append(block)
        alive.append(block)
    return meeting


def _first_fit(order: Sequence[Block], meeting: dict[str, list[Block]]) -> tuple[dict[str, int], int]:
    offsets: dict[str, int] = {}
    total = 0
    for block in order:
        offset = 0
        for start, size in sorted((offsets[o.key], o.bytes) for o in meeting[block.key] if o.key in offsets):
            if start - offset >= block.bytes:
                break
            offset = max(offset, start + size)
        offsets[block.key] = offset
        total = max(total, offset + block.bytes)
    return offsets, total
