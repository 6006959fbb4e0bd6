"""What no compiler checks: memory that is read before it is written, live tensors that are overwritten, DMA, tables.

An audit follows one run byte by byte. Every byte of the arena and of the fast memory knows which operation wrote it
last, so a reader can say whether what it finds is what it should find: nothing, the graph's input, or the result of a
layer that it reads from. It also follows which transfers and computations may still run when an operation starts.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from anynpu.runtime.ethos_u.findings import ARENA, FAST, Audited, Used, Violation
from anynpu.runtime.ethos_u.layers import Layer
from anynpu.runtime.ethos_u.memory import FeatureMap, Region, Span
from anynpu.runtime.ethos_u.model import Tensor
from anynpu.runtime.ethos_u.stream import Operation
from anynpu.tensors import Array

UNWRITTEN, GIVEN, CONSTANT = -1, -2, -3
"""Labels of bytes that no operation of the NPU has written: nothing yet, a tensor of the graph, a constant."""
LINE = 16
OUTSTANDING_KERNELS = 2
OUTSTANDING_DMA = {0: 1, 1: 2, 2: 4}
"""How many operations may run at a time: computations on every product, transfers by product."""


@dataclass(frozen=True)
class Interval:
    """Bytes of one memory that an operation reads or writes, from the first to behind the last."""

    memory: int
    first: int
    last: int
    writes: bool

    def conflicts(self, other: Interval) -> bool:
        shared = self.memory == other.memory and self.first < other.last and other.first < self.last
        return shared and (self.writes or other.writes)


class Audit:
    """Follows the accesses of one run of one sample; `violations` has what was wrong."""

    def __init__(self, layers: Mapping[tuple[int, int], Layer]) -> None:
        self.violations: list[Violation] = []
        self._layers = layers
        self._labels: dict[int, Array] = {}
        self._fills: dict[int, Array] = {}
        self._names: dict[int, str] = {}
        self._writers: list[tuple[int, Operation]] = []
        self._stream, self._product = 0, 0
        self._loaded: Array = np.zeros(0, bool)
        self._running: dict[str, deque[tuple[Operation, list[Interval]]]] = {}
        self._accesses: list[Interval] = []
        self._reported: set[tuple[str, int, int]] = set()

    def begin_stream(self, number: int, product: int, table_bytes: int) -> None:
        """Starts following a stream: no table is loaded, and nothing runs."""
        self._stream, self._product = number, product
        self._fills = {}
        self._loaded = np.zeros(table_bytes, bool)
        self._running = {
            "dma": deque(maxlen=OUTSTANDING_DMA.get(product, 1)),
            "kernel": deque(maxlen=OUTSTANDING_KERNELS),
        }

    def labels(self, region: Region) -> Array:
        """Returns who wrote each byte of the memory that a region lies in."""
        memory = id(region.rows)
        if memory not in self._labels:
            self._labels[memory] = np.full(region.rows.shape[1], UNWRITTEN, np.int32)
            self._names[memory] = region.name
        return self._labels[memory]

    def _filled(self, region: Region) -> Array:
        """Returns which bytes of the memory that a region lies in the stream has written."""
        return self._fills.setdefault(id(region.rows), np.zeros(region.rows.shape[1], bool))

    def give(self, region: Region, tensor: Tensor) -> None:
        """Notes that a tensor of the graph now lies in the arena."""
        self.labels(region)[tensor.offset : tensor.offset + tensor.nbytes] = GIVEN

    def begin(self, op: Operation) -> None:
        """Starts following an operation, after the waits before it."""
        for name, allowed in (("dma", op.dma_wait), ("kernel", op.kernel_wait)):
            while allowed is not None and len(self._running[name]) > allowed:
                self._running[name].popleft()
        self._accesses = []

    def end(self, op: Operation) -> None:
        """Checks that nothing which may still run touches what the operation does."""
        kind = "dma" if op.kind == "dma" else "kernel"
        # Computations run in their order: the hardware itself keeps one from overtaking the one before.
        others = self._running["dma"] if kind == "kernel" else (*self._running["dma"], *self._running["kernel"])
        for other, accesses in others:
            if any(a.conflicts(b) for a in self._accesses for b in accesses):
                text = f"it starts while {other.title} may still run, which touches the same memory"
                self._report("overlap", op, "DMA0" if kind == "dma" else "WAIT", "", text)
                break
        self._running[kind].append((op, self._accesses))

    def aligned(self, op: Operation, registers: str, value: int, multiple: int) -> None:
        """Checks an address or a length."""
        if value % multiple:
            self._report("unaligned", op, registers, "", f"{registers} is {value:#x}, not a multiple of {multiple}")

    def read_map(self, op: Operation, region: Region, fm: FeatureMap, span: Span) -> None:
        """Follows the reading of (part of) a feature map."""
        self._map(op, region, fm, span, False)
        if region.writable:
            self._read(op, fm.name, span.of(self.labels(region)))

    def write_map(self, op: Operation, region: Region, fm: FeatureMap, span: Span) -> None:
        """Follows the writing of (part of) a feature map."""
        self._map(op, region, fm, span, True)
        if not self._writers or self._writers[-1] != (self._stream, op):
            self._writers.append((self._stream, op))
        span.of(self.labels(region))[...] = len(self._writers) - 1
        span.of(self._filled(region))[...] = True

    def read_bytes(self, op: Operation, registers: str, region: Region, start: int, length: int) -> None:
        """Follows the reading of a stretch of bytes."""
        self._accesses.append(_interval(region, start, start + length, False))
        if region.writable:
            self._read(op, registers, self.labels(region)[region.start + start : region.start + start + length])

    def move(self, op: Operation, source: tuple[Region, int], target: tuple[Region, int], length: int) -> None:
        """Follows a transfer: the bytes keep the label of what wrote them, and only their reader is judged by it."""
        (region, start), (other, end) = source, target
        self._accesses += [_interval(region, start, start + length, False), _interval(other, end, end + length, True)]
        taken, put = region.start + start, other.start + end
        if region.rows is other.rows and taken != put and taken < put + length and put < taken + length:
            text = f"its {length} bytes from {start:#x} and to {end:#x} overlap"
            self._report("overlap", op, "DMA0_SRC, DMA0_DST", "", text)
        self._filled(other)[put : put + length] = True
        if not region.writable:
            self.labels(other)[put : put + length] = CONSTANT
            return
        self.labels(other)[put : put + length] = self.labels(region)[taken : taken + length].copy()

    def load_table(self, op: Operation, start: int, length: int) -> None:
        """Follows a transfer into the memory of tables."""
        self._accesses.append(Interval(0, start, start + length, True))
        self._loaded[start : start + length] = True

    def use_table(self, op: Operation, start: int, length: int) -> None:
        """Checks that a table is loaded when an operation looks it up."""
        self._accesses.append(Interval(0, start, start + length, False))
        if missing := int((~self._loaded[start : start + length]).sum()):
            text = f"{missing} of {length} bytes of its table were never loaded"
            self._report("unloaded-table", op, "ACTIVATION", "", text)

    def end_stream(self, region: Region, live: Iterable[Tensor], outputs: Iterable[Tensor], last: Operation) -> None:
        """Checks that a stream has left alone the tensors that later operators read, and has written its own whole."""
        labels = self.labels(region)
        mine = (i for i, (number, _) in enumerate(self._writers) if number == self._stream)
        first = next(mine, len(self._writers))
        for tensor in live:
            seen = labels[tensor.offset : tensor.offset + tensor.nbytes]
            if len(wrong := seen[seen >= first]):
                _, op = self._writers[int(wrong[0])]
                text = f"it writes into tensor {tensor.name}, which a later operator reads"
                self._report("live-write", op, "OFM", tensor.name, text)
        for tensor in outputs:
            place = slice(tensor.offset, tensor.offset + tensor.nbytes)
            if missing := int((~self._filled(region)[place]).sum()):
                writer = int(labels[place].max())
                op = self._writers[writer][1] if writer >= first else last
                text = f"the stream leaves {missing} of {tensor.nbytes} bytes of its output {tensor.name} unwritten"
                self._report("unwritten-output", op, "OFM", tensor.name, text)

    def touched(self) -> dict[str, tuple[int, int]]:
        """Returns, for each memory, how many bytes were used and the first byte behind them."""
        used = {self._names[memory]: np.flatnonzero(labels != UNWRITTEN) for memory, labels in self._labels.items()}
        return {name: (len(places), int(places[-1]) + 1 if len(places) else 0) for name, places in used.items()}

    def _map(self, op: Operation, region: Region, fm: FeatureMap, span: Span, writes: bool) -> None:
        self._accesses.append(_interval(region, *span.bounds(), writes))
        self.aligned(op, f"{fm.name}_BASE", span.base, LINE if fm.bricks else fm.dtype.itemsize)

    def _read(self, op: Operation, registers: str, labels: Array) -> None:
        writers, counts = np.unique(labels, return_counts=True)
        layer = self._layers.get((self._stream, op.word))
        if writers[0] <= UNWRITTEN and (missing := counts[writers == UNWRITTEN].sum()):
            text = f"{missing} of {labels.size} bytes that it reads as {registers} were never written"
            self._report("unwritten-read", op, registers, layer.title if layer else "", text)
        if layer is None or layer.reads is None:
            return
        strange = [label for label in writers.tolist() if self._strange(label, layer)]
        for label in strange:
            # What was there before the bytes that belong there is left over, what came after them destroys them.
            later = label >= 0 and any(
                other < label and other not in (*strange, UNWRITTEN) for other in writers.tolist()
            )
            writer = self._writers[label][1] if label >= 0 else None
            source = f"what {writer.title} wrote" if writer is not None else "an input of the graph"
            if later and writer is not None:
                text = f"it writes into a tensor that {op.title} of {layer.title} still reads as {registers}"
                self._report("live-write", writer, "OFM", layer.title, text)
            else:
                text = f"it reads as {registers} {source}, which {layer.title} has nothing to do with"
                self._report("stale-read", op, registers, layer.title, text)

    def _strange(self, label: int, layer: Layer) -> bool:
        """Returns whether bytes were written by a layer that the reader does not read from."""
        reads = layer.reads or frozenset()
        if label in (UNWRITTEN, CONSTANT):
            return False
        if label == GIVEN:
            return -1 not in reads
        stream, writer = self._writers[label]
        source = self._layers.get((stream, writer.word))
        return source is not None and source.operator not in reads and source.operator != layer.operator

    def _report(self, rule: str, op: Operation, registers: str, tensor: str, text: str) -> None:
        key = (rule, self._stream, op.index)
        if key in self._reported:
            return
        self._reported.add(key)
        message = f"{op.title}: {text}"
        self.violations.append(Violation(rule, self._stream, op.index, op.word, op.kind, registers, tensor, message))


def audited(audit: Audit, sram: int | None, dram: int | None) -> Audited:
    """Returns what an audit found, with a violation more where a run uses more memory than the manifest says.

    Where the NPU has a fast memory of its own, that is the SRAM, and the arena lies in DRAM.
    """
    touched = audit.touched()
    figures = {FAST: sram, ARENA: (dram if FAST in touched or not sram else sram) or None}
    used = tuple(Used(name, count, end, figures[name]) for name, (count, end) in touched.items())
    beyond = tuple(
        Violation("arena", 0, 0, 0, "", "", u.memory, f"a run touches {u.text}")
        for u in used
        if u.figure is not None and u.end > u.figure
    )
    return Audited((*audit.violations, *beyond), used)


def _interval(region: Region, first: int, last: int, writes: bool) -> Interval:
    return Interval(id(region.rows), region.start + first, region.start + last, writes)
