"""A TFLite file of Vela as what is to be done one after the other: NPU streams and CPU operators between them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from anynpu.errors import IntegrityError
from anynpu.runtime import tflite_file
from anynpu.runtime.ethos_u.stream import Stream, read_stream
from anynpu.tensors import Array

CUSTOM_CODE = b"ethos-u"
ALLOCATION = b"OfflineMemoryAllocation"
MAX_ARENA = 1 << 30
NUMPY_TYPES = {
    "INT8": "int8",
    "UINT8": "uint8",
    "INT16": "int16",
    "INT32": "int32",
    "INT64": "int64",
    "FLOAT32": "float32",
    "BOOL": "bool",
}


@dataclass(frozen=True)
class Tensor:
    """A tensor of the main graph and where it lies in the arena; -1 where it does not."""

    index: int
    name: str
    dtype: str
    shape: tuple[int, ...]
    offset: int
    constant: Array | None
    initial: int | None = None
    """What each byte of a variable holds before the first run; none for other tensors."""

    @property
    def nbytes(self) -> int:
        return int(np.prod(self.shape, dtype=np.int64)) * np.dtype(self.dtype).itemsize


@dataclass(frozen=True)
class NpuCall:
    """One `ethos-u` operator: its stream, its constants, and the tensors that are its working memories."""

    stream: Stream
    read_only: Array
    scratch: Tensor
    scratch_fast: Tensor
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]


@dataclass(frozen=True)
class CpuCall:
    """One operator for the CPU, as a TFLite model of its own."""

    name: str
    model: bytes
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]


@dataclass(frozen=True)
class Model:
    """The tensors of a Vela file and its calls in their order."""

    tensors: tuple[Tensor, ...]
    calls: tuple[NpuCall | CpuCall, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    arena_bytes: int

    def live_across(self, number: int) -> tuple[Tensor, ...]:
        """Returns the tensors in the arena that a call must leave alone: written before it and read behind it."""
        before = {*self.inputs, *(i for call in self.calls[:number] for i in call.outputs)}
        behind = {*self.outputs, *(i for call in self.calls[number + 1 :] for i in call.inputs)}
        kept = before & behind - set(self.calls[number].outputs)
        return tuple(self.tensors[i] for i in sorted(kept) if self.tensors[i].offset >= 0)

    def given_by(self, number: int) -> tuple[Tensor, ...]:
        """Returns the tensors in the arena that a call writes, all of them: two streams may share one between them."""
        others = {i for n, call in enumerate(self.calls) if n != number for i in call.outputs}
        own = (self.tensors[i] for i in self.calls[number].outputs if i not in others)
        return tuple(tensor for tensor in own if tensor.offset >= 0)


def read_model(path: Path) -> Model:
    """Returns what is in a Vela file; a damaged one raises."""
    from ai_edge_litert import schema_py_generated as schema

    model = tflite_file.read_model(path.read_bytes(), str(path))
    with tflite_file.damage_reported(str(path)):
        graph = model.subgraphs[0]
        allocated = [entry.buffer for entry in model.metadata or () if entry.name == ALLOCATION]
        if not allocated:
            raise IntegrityError("the file does not say where its tensors lie: it has no OfflineMemoryAllocation")
        words = np.frombuffer(bytes(model.buffers[allocated[0]].data), np.int32)
        tensors = tensors_of(schema, model, [int(offset) for offset in words[3 : 3 + int(words[2])]])
        if any(n < 0 for tensor in tensors for n in tensor.shape):
            raise IntegrityError("a tensor has a dynamic shape")
        calls = tuple(call_of(schema, model, op, tensors) for op in graph.operators)
        used = (*_numbers(graph.inputs), *_numbers(graph.outputs), *(i for c in calls for i in (*c.inputs, *c.outputs)))
        if any(not 0 <= index < len(tensors) for index in used):
            raise IntegrityError(f"the graph names a tensor that is not among its {len(tensors)}")
        own = {call.scratch_fast.index for call in calls if isinstance(call, NpuCall)}
        own -= {call.scratch.index for call in calls if isinstance(call, NpuCall)}
        ends = [t.offset + t.nbytes for t in tensors if t.offset >= 0 and t.index not in own]
        arena = max(ends, default=0)
        if arena > MAX_ARENA:
            raise IntegrityError(f"the arena has {arena} bytes: more than any microcontroller has")
        return Model(tensors, calls, _numbers(graph.inputs), _numbers(graph.outputs), arena)


def tensors_of(schema: Any, model: Any, offsets: Sequence[int]) -> tuple[Tensor, ...]:
    """Returns the tensors of the main graph; those behind the last of `offsets` have no place in the arena."""
    types = {v: k for k, v in vars(schema.TensorType).items() if isinstance(v, int)}
    listed = []
    for index, tensor in enumerate(model.subgraphs[0].tensors):
        data, form = model.buffers[tensor.buffer].data, tensor.quantization
        # The byte that TFLite-Micro fills a variable with: the zero point of 8 bits, otherwise 0.
        eight = tensor.type == schema.TensorType.INT8 and form is not None and form.zeroPoint is not None
        initial = int(form.zeroPoint[0]) & 0xFF if tensor.isVariable and eight else 0
        listed.append(
            Tensor(
                index,
                (tensor.name or b"").decode("utf-8", "replace"),
                NUMPY_TYPES[types[tensor.type]],
                _numbers(tensor.shape),
                offsets[index] if index < len(offsets) else -1,
                None if data is None or len(data) == 0 else np.asarray(data, np.uint8),
                initial if tensor.isVariable else None,
            )
        )
    return tuple(listed)


def _numbers(values: Any) -> tuple[int, ...]:
    return () if values is None else tuple(int(v) for v in values)


def call_of(schema: Any, model: Any, op: Any, tensors: tuple[Tensor, ...]) -> NpuCall | CpuCall:
    """Returns an operator: a stream for the NPU, or for the CPU a model that has nothing else."""
    graph = model.subgraphs[0]
    if model.operatorCodes[op.opcodeIndex].customCode == CUSTOM_CODE:
        commands, read_only, scratch, fast, *inputs = _numbers(op.inputs)
        payload, constants = tensors[commands].constant, tensors[read_only].constant
        if payload is None:
            raise IntegrityError("an ethos-u operator has no command stream")
        stream, nothing = read_stream(payload.tobytes()), np.zeros(0, np.uint8)
        memories = nothing if constants is None else constants, tensors[scratch], tensors[fast]
        return NpuCall(stream, *memories, tuple(inputs), _numbers(op.outputs))
    fed = [i for i in _numbers(op.inputs) if i >= 0 and tensors[i].constant is None]
    outputs, inner = _numbers(op.outputs), _numbers(op.intermediates)
    used = sorted({i for i in (*_numbers(op.inputs), *outputs, *inner) if i >= 0})
    place = {index: number for number, index in enumerate(used)}
    single = schema.ModelT()
    single.version, single.description = 3, b""
    single.operatorCodes = [model.operatorCodes[op.opcodeIndex]]
    single.buffers = [schema.BufferT()]
    copies = []
    for index in used:
        copy = schema.TensorT()
        copy.__dict__.update(graph.tensors[index].__dict__)
        copy.buffer = 0
        if tensors[index].constant is not None:
            copy.buffer = len(single.buffers)
            single.buffers.append(model.buffers[graph.tensors[index].buffer])
        copies.append(copy)
    operator = schema.OperatorT()
    operator.__dict__.update(op.__dict__)
    operator.opcodeIndex = 0
    operator.inputs = [place.get(i, -1) for i in _numbers(op.inputs)]
    operator.outputs = [place[i] for i in outputs]
    operator.intermediates = [place[i] for i in inner] or None
    sub = schema.SubGraphT()
    sub.tensors, sub.operators, sub.name = copies, [operator], b"one"
    unique = list(dict.fromkeys(fed))
    sub.inputs, sub.outputs = [place[i] for i in unique], [place[i] for i in outputs]
    single.subgraphs = [sub]
    return CpuCall(tensors[outputs[0]].name, tflite_file.pack_model(single), tuple(unique), outputs)
