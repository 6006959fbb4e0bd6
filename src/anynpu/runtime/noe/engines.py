"""A model that the vendor's library, libnoe, has loaded: in a process of its own, or in this one."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from anynpu.errors import DeviceError, IntegrityError
from anynpu.runtime.noe.abi import Qos
from anynpu.runtime.noe.cix import Cix, CixTensor
from anynpu.runtime.noe.client import CLIENTS, GRACE_S, Client, shared_memory
from anynpu.runtime.noe.device import Descriptor, Graph, Info, Memory, Times, clock
from anynpu.runtime.noe.local import LOCALS, Local
from anynpu.runtime.noe.status import GRAPH_VERSION
from anynpu.tensors import Array

ALIGNMENT = 4096
Parts = tuple[int, int, int, Times]
"""Nanoseconds before the library's owner is asked, until it answers, and after; and those inside the library."""
Ran = tuple[list[Array], Parts]
Shapes = tuple[tuple[tuple[int, ...], tuple[int, ...]], ...]


class Engine(Protocol):
    """A loaded model: here or in another process."""

    @property
    def lost(self) -> str: ...

    @property
    def worker(self) -> int: ...

    def run(self, inputs: Sequence[Array], timeout_ms: int) -> Ran: ...

    def begin(self, inputs: Sequence[Array], timeout_ms: int) -> Callable[[], Ran] | None: ...

    def info(self) -> Info: ...

    def shapes(self) -> Shapes: ...

    def close(self) -> None: ...


class Isolated:
    """A model in the process that holds the library; tensors pass through memory that both map."""

    def __init__(self, library: Path, cix: Cix, qos: Qos) -> None:
        self._library, self._handle = library, 0
        self._client: Client = CLIENTS.acquire(library)
        try:
            inputs, after = _places(cix.inputs, 0)
            outputs, size = _places(cix.outputs, after)
            program, tensors = -1, -1
            try:
                program, content = shared_memory("anynpu-program", len(cix.elf))
                with content:
                    content[:] = cix.elf
                tensors, memory = shared_memory("anynpu-tensors", size)
                request = {"inputs": inputs, "outputs": outputs, "qos": int(qos)}
                answer = self._client.ask("load", descriptors=[program, tensors], **request)
            finally:
                for descriptor in (program, tensors):
                    with suppress(OSError):
                        os.close(descriptor)
            self._handle = answer["handle"]
            _check_descriptors(cix, *([Descriptor(*row) for row in answer[kind]] for kind in ("inputs", "outputs")))
            self._inputs = [_view(memory, place, t) for place, t in zip(inputs, cix.inputs, strict=True)]
            self._outputs = [_view(memory, place, t) for place, t in zip(outputs, cix.outputs, strict=True)]
        except BaseException as error:
            if isinstance(error, DeviceError) and error.code == GRAPH_VERSION:
                self._client.abandon()  # the library would crash in whatever comes next
            self.close()
            raise

    @property
    def lost(self) -> str:
        return self._client.lost or ("" if self._client.pid == os.getpid() else "it belongs to another process")

    @property
    def worker(self) -> int:
        return self._client.worker

    def run(self, inputs: Sequence[Array], timeout_ms: int) -> Ran:
        with self._client.lock:
            return self._begun(inputs, timeout_ms)()

    def begin(self, inputs: Sequence[Array], timeout_ms: int) -> Callable[[], Ran] | None:
        lock = self._client.lock
        if not lock.acquire(blocking=False):
            return None
        try:
            ran = self._begun(inputs, timeout_ms)
        except BaseException:
            lock.release()
            raise

        def end() -> Ran:
            try:
                return ran()
            finally:
                lock.release()

        return end

    def _begun(self, inputs: Sequence[Array], timeout_ms: int) -> Callable[[], Ran]:
        """Has the other process run the model, and returns what waits for it; the lock is held until then."""
        began, client = clock(), self._client
        for view, array in zip(self._inputs, inputs, strict=True):
            view[...] = array
        copied = clock()
        sent = client.begin(self._handle, timeout_ms)

        def end() -> Ran:
            times = client.end(timeout_ms, sent)
            answered = clock()
            outputs = [view.copy() for view in self._outputs]
            return outputs, (copied - began, answered - copied, clock() - answered, times)

        return end

    def info(self) -> Info:
        answer = self._client.ask("info")
        return Info(**{**answer, "cores": tuple(map(tuple, answer["cores"]))})

    def shapes(self) -> Shapes:
        answer = self._client.ask("shapes", handle=self._handle)
        return tuple((tuple(least), tuple(most)) for least, most in answer)

    def close(self) -> None:
        if self._handle and not self.lost:
            with suppress(DeviceError):
                self._client.ask("unload", handle=self._handle)
        CLIENTS.release(self._library, self._client)


class InProcess:
    """A model in this process; the library reads and writes the arrays themselves."""

    def __init__(self, library: Path, cix: Cix, qos: Qos) -> None:
        self._library, self._inputs, self._outputs = library, cix.inputs, cix.outputs
        # The library keeps the address of the program until it is unloaded.
        self._program = np.frombuffer(cix.elf, np.uint8)
        self._local: Local = LOCALS.acquire(library)
        self._graph: Graph | None = None
        try:
            self._graph = self._call(Graph, self._local.device, _memory(self._program), qos)
            _check_descriptors(cix, self._graph.inputs, self._graph.outputs)
        except BaseException:
            self.close()
            raise

    def _call(self, function: Any, *arguments: Any, limit_s: float = 120.0) -> Any:
        return self._local.owner.call(function, *arguments, timeout_s=limit_s)

    @property
    def lost(self) -> str:
        return self._local.lost

    @property
    def worker(self) -> int:
        return self._local.pid

    def begin(self, inputs: Sequence[Array], timeout_ms: int) -> None:
        return None

    def run(self, inputs: Sequence[Array], timeout_ms: int) -> Ran:
        began = clock()
        padded = [_padded(array, t) for array, t in zip(inputs, self._inputs, strict=True)]
        room = [np.empty(t.nbytes, np.uint8) for t in self._outputs]
        asked = clock()
        # Arrays, not addresses: they live as long as the task, even if nobody waits for it any more.
        times = self._call(_run_arrays, self._graph, padded, room, timeout_ms, limit_s=timeout_ms / 1000 + GRACE_S)
        outputs = [_view(array, (0, t.nbytes), t) for array, t in zip(room, self._outputs, strict=True)]
        return outputs, (asked - began, clock() - asked, 0, times)

    def info(self) -> Info:
        info: Info = self._call(self._local.device.info)
        return info

    def shapes(self) -> Shapes:
        assert self._graph is not None
        shapes: Shapes = self._call(self._graph.dynamic_shapes)
        return shapes

    def close(self) -> None:
        if self._graph is not None and not self.lost:
            with suppress(DeviceError):
                self._call(self._graph.close)
        LOCALS.release(self._library, self._local)


def _run_arrays(graph: Graph, inputs: Sequence[Array], outputs: Sequence[Array], timeout_ms: int) -> Times:
    return graph.run([_memory(a) for a in inputs], [_memory(a) for a in outputs], timeout_ms)


def _memory(array: Array) -> Memory:
    return Memory(array.__array_interface__["data"][0], array.nbytes)


def _padded(array: Array, tensor: CixTensor) -> Array:
    """Returns the array in memory of as many bytes as the library reads."""
    if array.nbytes == tensor.nbytes:
        return np.ascontiguousarray(array)
    room = np.zeros(tensor.nbytes, np.uint8)
    _view(room, (0, tensor.nbytes), tensor)[...] = array
    return room


def _places(tensors: Sequence[CixTensor], start: int) -> tuple[list[tuple[int, int]], int]:
    """Returns offset and size of every tensor in the shared memory, and where the next may begin."""
    places = []
    for tensor in tensors:
        places.append((start, tensor.nbytes))
        start += math.ceil(tensor.nbytes / ALIGNMENT) * ALIGNMENT
    return places, start


def _view(memory: Any, place: tuple[int, int], tensor: CixTensor) -> Array:
    count = math.prod(tensor.shape)
    return np.frombuffer(memory, tensor.dtype, count, place[0]).reshape(tensor.shape)


def _check_descriptors(cix: Cix, inputs: Sequence[Descriptor], outputs: Sequence[Descriptor]) -> None:
    """Raises unless the library describes every tensor as the file does: our buffers have the file's sizes."""
    for what, tensors, described in (("input", cix.inputs, inputs), ("output", cix.outputs, outputs)):
        if len(tensors) != len(described):
            raise IntegrityError(f"libnoe finds {len(described)} {what}s in the model, the file has {len(tensors)}")
        for tensor, descriptor in zip(tensors, described, strict=True):
            wanted = (tensor.nbytes, tensor.vendor_dtype, tensor.vendor_zero_point, np.float32(tensor.vendor_scale))
            got = (descriptor.nbytes, descriptor.dtype, descriptor.zero_point, np.float32(descriptor.scale))
            if got != wanted:
                raise IntegrityError(
                    f"{what} {tensor.name}: libnoe says bytes, type, zero point and scale are {_text(got)}, the file "
                    f"says {_text(wanted)}",
                    "the model was made by a compiler that does not fit this version of the library",
                )


def _text(values: tuple[Any, ...]) -> str:
    return ", ".join(f"{value:g}" for value in values)
