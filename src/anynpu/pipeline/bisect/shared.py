"""The tensors that two executions of one model share, in the order of execution: the places where it can be cut."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from anynpu.graph.outline import NodeOutline, Outline


@dataclass(frozen=True)
class Part:
    """A sub-model: what goes in and what comes out, by the names of shared tensors."""

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    rounded: tuple[str, ...] = ()
    """Inputs that go in behind the pair that rounds them, not before it."""


@dataclass(frozen=True)
class Unit:
    """The operators that make one shared tensor of the nearest shared tensors before it; usually one operator."""

    tensor: str
    parents: tuple[str, ...]
    nodes: tuple[NodeOutline, ...]


@dataclass(frozen=True)
class SharedGraph:
    """The units of a model in the order of execution. Cut `k` lies behind the first `k` units."""

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    units: tuple[Unit, ...]

    def __len__(self) -> int:
        return len(self.units)

    @property
    def whole(self) -> Part:
        return Part(self.inputs, self.outputs)

    def block(self, start: int, end: int) -> Part:
        """Returns the sub-model between two cuts; it gives what is read behind it, or leaves the model."""
        inner = {unit.tensor for unit in self.units[start:end]}
        read = {parent for unit in self.units[end:] for parent in unit.parents} | {*self.outputs}
        outputs = tuple(unit.tensor for unit in self.units[start:end] if unit.tensor in inner & read)
        kept = {unit.tensor for tensor in outputs for unit in self.before(tensor, start, end)}
        parents = (unit.parents for unit in self.units[start:end] if unit.tensor in kept)
        inputs = dict.fromkeys(name for names in parents for name in names if name not in kept)
        return Part(tuple(inputs), outputs)

    def tail(self, start: int) -> Part:
        """Returns the sub-model behind a cut; it gives the outputs of the model."""
        return self.block(start, len(self.units))

    def before(self, tensor: str, start: int, end: int) -> tuple[Unit, ...]:
        """Returns the units between two cuts that a tensor depends on, with the one that makes it."""
        needed, kept = {tensor}, list[Unit]()
        for unit in reversed(self.units[start:end]):
            if unit.tensor in needed:
                needed |= {*unit.parents}
                kept.append(unit)
        return tuple(reversed(kept))


def part_of(units: Collection[Unit], output: str) -> Part:
    """Returns the sub-model of some units that gives one of their tensors."""
    inner = {unit.tensor for unit in units}
    return Part(tuple(dict.fromkeys(p for unit in units for p in unit.parents if p not in inner)), (output,))


def share(outline: Outline, inputs: Iterable[str], outputs: Iterable[str], common: Collection[str]) -> SharedGraph:
    """Returns the units of a graph, given which of its tensors another execution has too."""
    makers = {name: node for node in outline.nodes for name in node.outputs}
    borders, results = tuple(inputs), tuple(outputs)
    known = {*borders, *common}
    units = [
        _unit(name, makers, known)
        for node in outline.nodes
        for name in node.outputs
        if name in known and name not in borders
    ]
    needed, kept = {*results}, list[Unit]()
    for unit in reversed(units):
        if unit.tensor in needed:
            needed |= {*unit.parents}
            kept.append(unit)
    return SharedGraph(borders, results, tuple(reversed(kept)))


def _unit(tensor: str, makers: Mapping[str, NodeOutline], known: Collection[str]) -> Unit:
    parents: dict[str, None] = {}
    nodes: dict[str, NodeOutline] = {}
    waiting = [makers[tensor]]
    while waiting:
        node = waiting.pop()
        nodes[node.name] = node
        for name in node.inputs:
            if name in known:
                parents[name] = None
            elif name in makers and makers[name].name not in nodes:
                waiting.append(makers[name])
    return Unit(tensor, tuple(parents), tuple(reversed(nodes.values())))
