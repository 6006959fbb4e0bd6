"""What the operations of a stream do by themselves: on noise in the places that they read, whatever lies there.

Two streams whose operations store the same bytes at the same places, made of the same noise, compute the same.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from anynpu.errors import IntegrityError
from anynpu.runtime.ethos_u.arithmetic import rescale
from anynpu.runtime.ethos_u.memory import FeatureMap, Memories, Region, dtype_of, signed
from anynpu.runtime.ethos_u.model import Model, NpuCall
from anynpu.runtime.ethos_u.operations import Filters, Machine
from anynpu.runtime.ethos_u.operations85 import _ofm_scale
from anynpu.runtime.ethos_u.stream import Operation
from anynpu.runtime.ethos_u.twin import Twin

SAMPLES = 32


class Registers(dict[str, int]):
    """The registers of an operation, and which of them were looked at."""

    def __init__(self, values: dict[str, int]) -> None:
        super().__init__(values)
        self.seen: set[str] = set()

    def __getitem__(self, name: str) -> int:
        self.seen.add(name)
        return super().__getitem__(name)

    def get(self, name: str, default: int = 0) -> int:  # type: ignore[override]  # no register is None
        self.seen.add(name)
        return super().get(name, default)


class NoisyMemories(Memories):
    """Memories whose feature maps are noise, the same at the same address; what is stored goes elsewhere."""

    def __init__(self, memories: Memories, seed: int = 0) -> None:
        super().__init__(memories._regions, len(memories.tables))
        rng = np.random.default_rng(seed)
        writable = {id(r.rows): r.rows.shape for r in memories._regions.values() if r.writable}
        self._noise, self.stored = (
            {key: rng.integers(0, 256, shape, np.uint8) for key, shape in writable.items()} for _ in range(2)
        )

    def _view(
        self,
        op: Operation,
        fm: FeatureMap,
        base: int,
        shape: tuple[int, ...],
        strides: tuple[int, int, int],
        writes: bool = False,
    ) -> np.ndarray:
        view = super()._view(op, fm, base, shape, strides, writes)
        region = self.region(op, fm.region)
        if not region.writable:
            return view
        rows = (self.stored if writes else self._noise)[id(region.rows)]
        return np.ndarray(view.shape, view.dtype, rows, region.start + base, view.strides)


class Probe:
    """One stream of a model, operation by operation."""

    def __init__(self, model: Model, call: NpuCall) -> None:
        self.call = call
        twin = Twin(model)
        arena = np.zeros((SAMPLES, model.arena_bytes), np.uint8)
        twin._npu(call, arena)
        self.machine: Machine = twin._machines[id(call)]
        arena[...] = 0
        self.memories = NoisyMemories(twin._memories(self.machine, call, arena))

    def step(self, op: Operation) -> str:
        """Executes one operation; returns why it could not, or an empty string."""
        try:
            self.machine.execute(op, self.memories)
        except IntegrityError as error:
            return error.message
        return ""

    def stored(self) -> list[np.ndarray]:
        return list(self.memories.stored.values())

    def filters(self) -> dict[int, Filters]:
        return self.machine._filters


def first_other(healthy: Model, faulty: Model) -> str:
    """Returns the first operation that stores something else when it is given the same noise, or an empty string."""
    pairs = [
        (Probe(healthy, mine), Probe(faulty, theirs))
        for mine, theirs in zip(healthy.calls, faulty.calls, strict=True)
        if isinstance(mine, NpuCall) and isinstance(theirs, NpuCall) and mine is not theirs
    ]
    for mine, theirs in pairs:
        for good, bad in zip(mine.call.stream.operations, theirs.call.stream.operations, strict=True):
            why = mine.step(good), theirs.step(bad)
            same = all(map(np.array_equal, mine.stored(), theirs.stored()))
            if why[0] != why[1] or not same or (good.kind == "dma" and not _moves_the_same(mine, good, bad)):
                return bad.title
    return ""


class Tables:
    """A watcher that keeps the tables which operations look up, as they are then."""

    def __init__(self, memories: Memories) -> None:
        self._memories = memories
        self.used: list[tuple[str, bytes]] = []

    def use_table(self, op: Operation, start: int, length: int) -> None:
        self.used.append((op.title, self._memories.tables[start : start + length].tobytes()))

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *_: None


def first_other_table(healthy: Model, faulty: Model) -> str:
    """Returns the first operation that looks up another table, or an empty string."""
    used: list[list[tuple[str, bytes]]] = []
    for model in (healthy, faulty):
        used.append([])
        for call in (call for call in model.calls if isinstance(call, NpuCall)):
            probe = Probe(model, call)
            probe.memories.watcher = tables = Tables(probe.memories)
            for op in call.stream.operations:
                probe.step(op)
            used[-1] += tables.used
    return next((mine[0] for mine, theirs in zip(*used, strict=True) if mine != theirs), "")


@dataclass(frozen=True)
class Decoded:
    """The constants of one operation, with and without a fault."""

    op: Operation
    machine: Machine
    healthy: Filters
    faulty: Filters

    def same(self, *parts: str) -> bool:
        return all(np.array_equal(getattr(self.healthy, part), getattr(self.faulty, part)) for part in parts)


def decoded(healthy: Model, faulty: Model) -> list[Decoded]:
    """Returns the constants of each convolution of the streams that have a fault."""
    found = []
    for mine, theirs in zip(healthy.calls, faulty.calls, strict=True):
        if isinstance(mine, NpuCall) and isinstance(theirs, NpuCall) and mine is not theirs:
            good, bad = Probe(healthy, mine), Probe(faulty, theirs)
            found += [
                Decoded(mine.stream.operations[index], good.machine, filters, bad.filters()[index])
                for index, filters in good.filters().items()
            ]
    return found


def first_other_sum(constants: list[Decoded]) -> str:
    """Returns the first operation that makes another value of a sum of products, however its input gets to that sum.

    What is stored grows with the sum: it is the same for all sums if each value begins at the same one.
    """
    for both in constants:
        if both.same("weights") and not np.array_equal(begins(both, both.healthy), begins(both, both.faulty)):
            return both.op.title
    return ""


def begins(both: Decoded, filters: Filters) -> np.ndarray:
    """Returns the lowest sum of products that gives each value, for each channel."""
    op, weights = both.op, filters.weights.astype(np.int64)
    precision = op.register("IFM_PRECISION")
    limits = np.iinfo(dtype_of(precision, 2))
    zero_point = signed(op.registers.get("IFM_ZERO_POINT", 0), 16) if precision & 1 else op.register("IFM_ZERO_POINT")
    ends = np.array([limits.min - zero_point, limits.max - zero_point, 0])[:, None, None, None, None] * weights
    wide = op.register("OFM_PRECISION")
    out = np.iinfo(dtype_of(wide, 1))
    first = signed(op.register("OFM_ZERO_POINT"), 16) if wide & 1 else op.register("OFM_ZERO_POINT")
    low, high = (signed(n, 16) if wide & 1 else n for n in map(op.register, ("ACTIVATION_MIN", "ACTIVATION_MAX")))
    values = np.arange(max(low, out.min), min(high, out.max) + 1)[:, None] - first
    rounding = _ofm_scale(op)[2] if both.machine.stream.product == 2 else both.machine._rounding(op, "OFM")
    below = np.broadcast_to(ends.min(axis=0).sum(axis=(0, 1, 2)) - 1, (len(values), weights.shape[3])).copy()
    above = np.broadcast_to(ends.max(axis=0).sum(axis=(0, 1, 2)) + 1, below.shape).copy()
    while (above - below > 1).any():
        middle = (below + above) >> 1
        reached = rescale(middle + filters.bias, filters.scale, filters.shift, rounding) >= values
        above, below = np.where(reached, middle, above), np.where(reached, below, middle)
    return above


def looks_at(model: Model, op: Operation, name: str) -> bool:
    """Returns whether an operation looks at a register when it is executed."""
    (call,) = (c for c in model.calls if isinstance(c, NpuCall) and op in c.stream.operations)
    probe, registers = Probe(model, call), Registers(dict(op.registers))
    for other in call.stream.operations:
        if other is op:
            probe.step(Operation(op.index, op.word, op.kind, op.mode, registers, op.dma_wait, op.kernel_wait))
            return name in registers.seen
        probe.step(other)
    raise AssertionError(op.title)


def _moves_the_same(probe: Probe, good: Operation, bad: Operation) -> bool:
    """Returns whether two transfers do the same with memories, constants too, that are noise."""
    rng = np.random.default_rng(1)
    regions = probe.memories._regions
    noise = {id(r.rows): rng.integers(0, 256, (1, r.rows.shape[1]), np.uint8) for r in regions.values()}
    results = []
    for op in (good, bad):
        rows = {key: value.copy() for key, value in noise.items()}
        copies = {n: Region(r.name, rows[id(r.rows)], r.start, r.size, r.writable) for n, r in regions.items()}
        memories = Memories(copies, len(probe.memories.tables))
        try:
            probe.machine.execute(op, memories)
        except IntegrityError as error:
            results.append([np.frombuffer(error.message.encode(), np.uint8)])
            continue
        results.append([*rows.values(), memories.tables])
    return all(map(np.array_equal, *results))
