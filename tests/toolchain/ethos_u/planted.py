"""Faults planted in compiled models: one register, weight byte, scale, table entry or DMA address each."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from probe import decoded, first_other, first_other_sum, first_other_table, looks_at

from anynpu.errors import IntegrityError
from anynpu.runtime.ethos_u.difference import first_difference
from anynpu.runtime.ethos_u.layers import Layer, read_layers
from anynpu.runtime.ethos_u.model import Model, NpuCall
from anynpu.runtime.ethos_u.stream import Operation
from anynpu.runtime.ethos_u.twin import Twin
from anynpu.runtime.ethos_u.weights import Decoder

KINDS = ("register", "weight", "scale", "table", "dma")
HINTS = ("BLOCKDEP", "IFM_IB_END", "IFM2_IB_START", "OFM_BLK_WIDTH_M1", "OFM_BLK_HEIGHT_M1", "PARALLEL_MODE")
"""Registers that decide how the hardware goes about it and not what it computes; a twin has no use for them."""
LONG = ("BASE", "STRIDE_", "LENGTH", "SCALE", "DMA0_SRC", "DMA0_DST", "DMA0_LEN", "OP_SCALAR")


@dataclass(frozen=True)
class Fault:
    """What was changed, and the model with it."""

    kind: str
    what: str
    operation: Operation
    model: Model
    register: str = ""


@dataclass(frozen=True)
class Verdict:
    """How a fault was named, and the words; otherwise why it is harmless."""

    named: str
    where: str


def plant(model: Model, kind: str, rng: np.random.Generator) -> Fault | None:
    """Returns the model with one fault of a kind; none where the model has nothing of that kind."""
    calls = [c for c in model.calls if isinstance(c, NpuCall)]
    call = calls[int(rng.integers(len(calls)))]
    operations = call.stream.operations
    if kind == "register":
        op = operations[int(rng.integers(len(operations)))]
        names = sorted(n for n in op.registers if n not in HINTS and _used(op, n))
        name = names[int(rng.integers(len(names)))]
        bits = 32 if any(part in name for part in LONG) and not name.endswith("_REGION") else 16
        return _changed_register(model, call, op, name, op.registers[name] ^ 1 << int(rng.integers(bits)), kind)
    if kind == "dma":
        moves = [o for o in operations if o.kind == "dma"]
        if not moves:
            return None
        op = moves[int(rng.integers(len(moves)))]
        name = ("DMA0_SRC", "DMA0_DST")[int(rng.integers(2))]
        step = int(rng.choice([-4096, -64, -16, -1, 1, 16, 64, 256, 4096]))
        return _changed_register(model, call, op, name, (op.registers[name] + step) & 0xFFFFFFFF, kind)
    places = [(op, *place) for op in operations for place in _constants(op, kind)]
    found = [
        (op, start) for op, base, length in places if (start := _origin(call, op, base, kind)) is not None and length
    ]
    if not found:
        return None
    op, start = found[int(rng.integers(len(found)))]
    length = next(n for o, _, n in places if o is op)
    place = start + int(rng.integers(length))
    constants = call.read_only.copy()
    if place >= len(constants):
        return None
    constants[place] ^= 1 << int(rng.integers(8))
    changed = _replaced(model, call, dataclasses.replace(call, read_only=constants))
    return Fault(kind, f"byte {place} of the constants ({kind} of {op.title})", op, changed)


def judge(
    fault: Fault,
    healthy: Twin,
    source: Path,
    origins: Path,
    inputs: list[np.ndarray],
    wanted: list[np.ndarray],
) -> Verdict:
    """Returns how a fault comes out: refused, found by the audit, by the first tensor that differs from TFLite-Micro's,
    where later operations hide it, by the first operation that stores something else, or, where no sample gets to it,
    by the first that stores something else when it is given noise, or that makes something else of a sum.
    """
    twin = Twin(fault.model, Decoder())
    layers: dict[tuple[int, int], Layer] = read_layers(origins)
    try:
        got = twin.run_batch(inputs)
        audit = twin.audit([value[:1] for value in inputs], layers)
    except IntegrityError as error:
        return Verdict("refused", error.message)
    if audit.violations:
        return Verdict("audit", str(audit.violations[0]))
    wrong = [(g.reshape(w.shape) != w).reshape(len(w), -1).any(axis=1) for g, w in zip(got, wanted, strict=True)]
    bad = np.flatnonzero(np.logical_or.reduce(wrong))
    if len(bad) == 0:
        if where := _inner(twin, healthy, inputs):
            return Verdict("inside", where)
        if where := first_other(healthy.model, fault.model):
            return Verdict("alone", where)
        return harmless(fault, healthy.model)
    sample = [value[int(bad[0])] for value in inputs]
    return Verdict("difference", first_difference(twin, origins, source.read_bytes(), sample) or "the output itself")


def harmless(fault: Fault, healthy: Model) -> Verdict:
    """Returns why a fault that noise does not show changes nothing, or who could show it after all."""
    if fault.register:
        seen = looks_at(fault.model, fault.operation, fault.register)
        return Verdict("", "bits that it does not look at" if seen else "a register that it does not look at")
    if fault.kind == "table":
        where = first_other_table(healthy, fault.model)
        return Verdict("table", where) if where else Verdict("", "bytes that no table in use has")
    constants = decoded(healthy, fault.model)
    if all(both.same("weights", "bias", "scale", "shift") for both in constants):
        return Verdict("", "the constants decode to the same")
    if where := first_other_sum(constants):
        return Verdict("sum", where)
    if all(both.same("weights") for both in constants):
        return Verdict("", "every sum gives the same value")
    return Verdict("", "UNPROVEN: other weights that noise does not show")


def _inner(twin: Twin, healthy: Twin, inputs: list[np.ndarray]) -> str:
    """Returns the first operation that stores other values, or an empty string: then the fault changes nothing."""
    for mine, theirs in zip(twin.trace(inputs), healthy.trace(inputs), strict=True):
        if not np.array_equal(mine.values, theirs.values):
            return f"{mine.op.title} stores {int((mine.values != theirs.values).sum())} other values"
    return ""


def _used(op: Operation, name: str) -> bool:
    """Returns whether an operation of this kind looks at a register at all."""
    if op.kind == "dma":
        return name.startswith("DMA0")
    if name.startswith("DMA0"):
        return False
    if name.startswith("IFM2"):
        return op.kind == "elementwise"
    return op.kind in ("conv", "depthwise") or not name.startswith(("WEIGHT", "SCALE"))


def _constants(op: Operation, kind: str) -> list[tuple[int, int]]:
    """Returns base and length of what an operation takes from the constants, directly or by DMA."""
    if kind == "table":
        if op.kind == "dma" and op.register("DMA0_DST_REGION") >> 8 & 1:
            return [(op.address("DMA0_SRC"), op.address("DMA0_LEN"))]
        return []
    if op.kind not in ("conv", "depthwise") or f"{kind.upper()}_BASE" not in op.registers:
        return []
    return [(op.address(f"{kind.upper()}_BASE"), op.address(f"{kind.upper()}_LENGTH"))]


def _origin(call: NpuCall, op: Operation, base: int, kind: str) -> int | None:
    """Returns where in the constants bytes come from that an operation reads; none where no transfer brings them."""
    if kind == "table" or op.register(f"{kind.upper()}_REGION") & 7 == 0:
        return base
    for move in reversed(call.stream.operations[: op.index]):
        if move.kind == "dma" and not move.register("DMA0_DST_REGION") >> 8 & 1:
            start = move.address("DMA0_DST")
            if start <= base < start + move.address("DMA0_LEN") and move.register("DMA0_SRC_REGION") & 7 == 0:
                return move.address("DMA0_SRC") + base - start
    return None


def _changed_register(model: Model, call: NpuCall, op: Operation, name: str, value: int, kind: str) -> Fault:
    """Returns the model whose register has another value until it is written again, as in a stream."""
    old = op.registers[name]
    operations, changing, here = [], True, op
    for other in call.stream.operations:
        changing = changing and (other.index < op.index or other.registers.get(name) == old)
        if changing and other.index >= op.index:
            other = dataclasses.replace(other, registers={**other.registers, name: value})
            here = other if other.index == op.index else here
        operations.append(other)
    stream = dataclasses.replace(call.stream, operations=tuple(operations))
    changed = _replaced(model, call, dataclasses.replace(call, stream=stream))
    return Fault(kind, f"{name} {old:#x} became {value:#x} in {op.title}", here, changed, name)


def _replaced(model: Model, old: NpuCall, new: NpuCall) -> Model:
    return dataclasses.replace(model, calls=tuple(new if call is old else call for call in model.calls))
