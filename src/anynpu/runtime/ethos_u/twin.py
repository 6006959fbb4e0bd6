"""A twin of the Ethos-U: command streams executed on this host, many samples at a time."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from anynpu.errors import DeviceError, IntegrityError
from anynpu.runtime.ethos_u.audit import Audit
from anynpu.runtime.ethos_u.difference import Written
from anynpu.runtime.ethos_u.findings import ARENA, FAST
from anynpu.runtime.ethos_u.layers import Layer
from anynpu.runtime.ethos_u.memory import Memories, Region
from anynpu.runtime.ethos_u.model import CpuCall, Model, NpuCall, Tensor
from anynpu.runtime.ethos_u.operations import Machine
from anynpu.runtime.ethos_u.operations85 import Machine85
from anynpu.runtime.ethos_u.weights import Decoder
from anynpu.tensors import Array

BATCH_BYTES = 1 << 28


class Twin:
    """A Vela file ready to execute."""

    def __init__(self, model: Model, decoder: Decoder | None = None) -> None:
        self.model = model
        self._decoder = decoder or Decoder()
        self._machines: dict[int, Machine] = {}
        self._interpreters: dict[int, Any] = {}
        self._trace: list[Written] | None = None
        self._audit: Audit | None = None
        self._fill = 0

    def run(self, inputs: list[Array]) -> list[Array]:
        """Returns the outputs of one sample."""
        return [value[0] for value in self.run_batch([value[np.newaxis] for value in inputs])]

    def run_batch(self, inputs: list[Array]) -> list[Array]:
        """Returns the outputs of many samples: arrays with one more axis in front."""
        step = max(1, BATCH_BYTES // max(1, self.model.arena_bytes))
        parts = [
            self._run([value[first : first + step] for value in inputs]) for first in range(0, len(inputs[0]), step)
        ]
        return [np.concatenate(values) for values in zip(*parts, strict=True)]

    def trace(self, inputs: list[Array]) -> list[Written]:
        """Runs the model and returns what each operation of the NPU stores, in their order."""
        self._trace = []
        try:
            self.run_batch(inputs)
            return self._trace
        finally:
            self._trace = None

    def audit(self, inputs: list[Array], layers: Mapping[tuple[int, int], Layer]) -> Audit:
        """Runs one sample and returns what the operations did with the memories."""
        self._audit = Audit(layers)
        try:
            self._run(inputs)
            return self._audit
        finally:
            self._audit = None

    def _run(self, inputs: list[Array]) -> list[Array]:
        samples = len(inputs[0])
        arena = np.full((samples, self.model.arena_bytes), self._fill, np.uint8)
        whole = Region(ARENA, arena, 0, arena.shape[1])
        elsewhere: dict[int, Array] = {}
        for tensor in self.model.tensors:
            if tensor.initial is not None and tensor.offset >= 0:
                arena[:, tensor.offset : tensor.offset + tensor.nbytes] = tensor.initial
                self._given(whole, [tensor.index])
        for index, value in zip(self.model.inputs, inputs, strict=True):
            self._store(arena, elsewhere, self.model.tensors[index], value)
        self._given(whole, self.model.inputs)
        for number, call in enumerate(self.model.calls):
            if isinstance(call, NpuCall):
                self._npu(call, arena)
                if self._audit is not None and call.stream.operations:
                    live, outputs = self.model.live_across(number), self.model.given_by(number)
                    self._audit.end_stream(whole, live, outputs, call.stream.operations[-1])
            else:
                self._cpu(call, arena, elsewhere)
                self._given(whole, call.outputs)
        return [self._load(arena, elsewhere, self.model.tensors[index]) for index in self.model.outputs]

    def _given(self, arena: Region, tensors: Iterable[int]) -> None:
        """Notes for an audit that the caller or the CPU has stored tensors."""
        if self._audit is None:
            return
        for tensor in (self.model.tensors[index] for index in tensors):
            if tensor.offset >= 0:
                self._audit.give(arena, tensor)

    def _npu(self, call: NpuCall, arena: Array) -> None:
        machine = self._machines.get(id(call))
        if machine is None:
            machine = (Machine85 if call.stream.product == 2 else Machine)(call.stream, self._decoder)
            machine.prefetch(self._memories(machine, call, np.zeros((1, arena.shape[1]), np.uint8)))
            self._machines[id(call)] = machine
        memories, audit = self._memories(machine, call, arena), self._audit
        number = [id(c) for c in self.model.calls if isinstance(c, NpuCall)].index(id(call))
        if self._trace is not None:
            trace = self._trace
            memories.on_write = lambda op, values: trace.append(Written(number, op, values))
        if audit is None:
            for op in call.stream.operations:
                machine.execute(op, memories)
            return
        memories.watcher = audit
        audit.begin_stream(number, call.stream.product, machine.table_bytes)
        for op in call.stream.operations:
            audit.begin(op)
            machine.execute(op, memories)
            audit.end(op)

    def _memories(self, machine: Machine, call: NpuCall, arena: Array) -> Memories:
        read_only = np.ascontiguousarray(call.read_only)[np.newaxis]
        scratch = Region(ARENA, arena, max(call.scratch.offset, 0), call.scratch.nbytes)
        fast = scratch
        if call.scratch_fast.index != call.scratch.index:
            rows = np.full((len(arena), call.scratch_fast.nbytes), self._fill, np.uint8)
            fast = Region(FAST, rows, 0, call.scratch_fast.nbytes)
        regions = {0: Region("the constants", read_only, 0, len(call.read_only), False), 1: scratch, 2: fast}
        return Memories(regions, machine.table_bytes)

    def _cpu(self, call: CpuCall, arena: Array, elsewhere: dict[int, Array]) -> None:
        from anynpu.runtime.tflm import open_micro

        interpreter = self._interpreters.get(id(call))
        if interpreter is None:
            try:
                interpreter = self._interpreters[id(call)] = open_micro(call.model)
            except IntegrityError as error:
                raise DeviceError(f"{call.name} is left to the CPU, and {error.message}", call="invoke") from error
        operands = [self._load(arena, elsewhere, self.model.tensors[index]) for index in call.inputs]
        results: list[list[Array]] = []
        for sample in range(len(arena)):
            for number, value in enumerate(operands):
                row = np.ascontiguousarray(value[sample]).reshape(value.shape[1:])  # it makes a vector of a scalar
                interpreter.set_input(row, number)
            try:
                interpreter.invoke()
            except RuntimeError as error:
                raise DeviceError(f"TFLite-Micro failed on {call.name}: {error}", call="invoke") from error
            results.append([interpreter.get_output(i).copy() for i in range(len(call.outputs))])
        for index, values in zip(call.outputs, zip(*results, strict=True), strict=True):
            self._store(arena, elsewhere, self.model.tensors[index], np.stack(values))

    @staticmethod
    def _store(arena: Array, elsewhere: dict[int, Array], tensor: Tensor, values: Array) -> None:
        if tensor.offset < 0:
            elsewhere[tensor.index] = values
            return
        raw = np.ascontiguousarray(values, tensor.dtype).reshape(len(values), -1).view(np.uint8)
        if raw.shape[1] != tensor.nbytes or tensor.offset + tensor.nbytes > arena.shape[1]:
            raise IntegrityError(
                f"tensor {tensor.name} has {tensor.nbytes} bytes in the file, its values {raw.shape[1]}"
            )
        arena[:, tensor.offset : tensor.offset + tensor.nbytes] = raw

    @staticmethod
    def _load(arena: Array, elsewhere: dict[int, Array], tensor: Tensor) -> Array:
        if tensor.offset < 0:
            if tensor.index not in elsewhere:
                raise IntegrityError(f"tensor {tensor.name} is read, and nothing has written it")
            return elsewhere[tensor.index]
        if tensor.offset + tensor.nbytes > arena.shape[1]:
            raise IntegrityError(f"tensor {tensor.name} ends behind the arena of {arena.shape[1]} bytes")
        raw = np.ascontiguousarray(arena[:, tensor.offset : tensor.offset + tensor.nbytes])
        return raw.view(tensor.dtype).reshape(len(arena), *tensor.shape)
