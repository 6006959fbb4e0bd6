"""Runs .cix models on a Zhouyi NPU through the vendor's library, libnoe.

The library is held by a process of its own (`client.py`, `worker.py`): a crash there is a DeviceError here, what it
prints stays off our stdout, and one that hangs is ended. ANYNPU_NOE_ISOLATE=0 loads it into this process instead, with
one thread that owns the device (`local.py`).
"""

from __future__ import annotations

import math
import os
import threading
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from anynpu.artifact import Artifact
from anynpu.errors import ConfigError, DeviceError, IntegrityError, SuspectWarning, ToolMissing
from anynpu.runtime.base import check_names
from anynpu.runtime.noe import library as libraries
from anynpu.runtime.noe.abi import Qos
from anynpu.runtime.noe.cix import Cix, CixTensor, read_cix
from anynpu.runtime.noe.client import CLIENTS, GRACE_S, Client, shared_memory
from anynpu.runtime.noe.device import Descriptor, Graph, Info, Memory, Times, clock
from anynpu.runtime.noe.local import LOCALS, Local
from anynpu.runtime.noe.status import GRAPH_VERSION
from anynpu.tensors import Array, TensorSpec

ISOLATE, TIMEOUT_MS, QOS = "ANYNPU_NOE_ISOLATE", "ANYNPU_NOE_TIMEOUT_MS", "ANYNPU_NOE_QOS"
DEFAULT_TIMEOUT_MS, MOST_TIMEOUT_MS = 10_000, 3_600_000
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


class NoeSession:
    """A model on the NPU. Any thread may call `run`; one inference runs at a time."""

    name = "noe"
    formats = ("cix",)
    rank = 0
    what = "Zhouyi NPU through libnoe"
    hardware = True
    get = libraries.HINT

    def __init__(
        self,
        artifact: Artifact,
        timeout_ms: int | None = None,
        qos: str | None = None,
        isolate: bool | None = None,
    ) -> None:
        self._cix = read_cix(artifact.main)
        for sentence in self._cix.warnings:
            warnings.warn(f"{artifact.main}: {sentence}; the program counts", SuspectWarning, stacklevel=2)
        self.inputs, self.outputs = artifact.manifest.inputs, artifact.manifest.outputs
        self._places = _agreed(artifact, "inputs", self.inputs, self._cix.inputs)
        text = os.environ.get(TIMEOUT_MS, "") if timeout_ms is None else str(timeout_ms)
        if text and not (text.isdecimal() and 1 <= int(text) <= MOST_TIMEOUT_MS):
            raise ConfigError(f"a timeout of {text} ms", f"give whole milliseconds from 1 to {MOST_TIMEOUT_MS}")
        self.timeout_ms = int(text or DEFAULT_TIMEOUT_MS)
        self._qos = _qos(os.environ.get(QOS, "") if qos is None else qos)
        self._isolate = os.environ.get(ISOLATE, "1") != "0" if isolate is None else isolate
        self._dtypes = [np.dtype(spec.dtype) for spec in self._places]
        outputs = _agreed(artifact, "outputs", self.outputs, self._cix.outputs)
        self._output_names = [spec.name for spec in outputs]
        self._opening = threading.Lock()
        self._parts: Parts | None = None
        self._engine: Engine | None = self._open()

    @staticmethod
    def missing() -> str:
        return libraries.missing()

    def _open(self) -> Engine:
        if reason := libraries.missing():
            raise ToolMissing(reason, libraries.HINT)
        library = libraries.find()
        assert library is not None
        kind = Isolated if self._isolate else InProcess
        return kind(library.resolve(), self._cix, self._qos)

    def _ready(self) -> Engine:
        """Returns the loaded model; after a crash it is loaded again."""
        engine = self._engine
        if engine is not None and not engine.lost:
            return engine
        with self._opening:
            if self._engine is None:
                raise DeviceError("the session was closed", "run")
            if self._engine.lost:
                self._engine.close()
                self._engine = self._open()
            return self._engine

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Runs the model once on stored values."""
        return self._named(self._ready().run(self._ordered(inputs), self.timeout_ms))

    def begin(self, inputs: Mapping[str, Array]) -> Callable[[], dict[str, Array]] | None:
        """Has the device begin and returns what waits for the outputs; None where it is busy or lost."""
        arrays, engine = self._ordered(inputs), self._engine
        end = engine.begin(arrays, self.timeout_ms) if engine is not None and not engine.lost else None
        return None if end is None else lambda: self._named(end())

    def _ordered(self, inputs: Mapping[str, Array]) -> list[Array]:
        """Returns the arrays in the order of the file, if they are what the model takes."""
        if len(inputs) != len(self.inputs):
            check_names(inputs, self.inputs)
        arrays = []
        for spec, dtype in zip(self._places, self._dtypes, strict=True):
            array = inputs.get(spec.name)
            if array is None:
                check_names(inputs, self.inputs)
            array = np.asarray(array)
            if array.dtype != dtype or array.shape != spec.shape:
                spec.check(array)
            arrays.append(array)
        return arrays

    def _named(self, ran: Ran) -> dict[str, Array]:
        outputs, self._parts = ran
        return dict(zip(self._output_names, outputs, strict=True))

    def stages(self) -> Mapping[str, int]:
        """Returns the nanoseconds of every part of the last run: copies, the way to the library's owner, the device."""
        if self._parts is None:
            return {}
        before, asked, after, times = self._parts
        return {
            "copy in": before + times.load,
            "hand over": max(0, asked - sum(times)),
            "device": times.infer,
            "copy out": times.fetch + after,
        }

    @property
    def worker(self) -> int:
        """The number of the process that holds the library: our own, or another."""
        return self._ready().worker

    def worker_pids(self) -> tuple[int, ...]:
        """Returns the processes that work for this session; what they use is the model's own."""
        worker = self.worker
        return () if worker == os.getpid() else (worker,)

    def info(self) -> Info:
        """Returns what the device says of itself: target, versions, cores."""
        return self._ready().info()

    def versions(self) -> dict[str, str]:
        """Returns the versions of library and driver, and the NPU that they found."""
        info = self.info()
        return {"libnoe": info.library, "driver": info.driver, "device": info.target}

    def dynamic_shapes(self) -> Shapes:
        """Returns the smallest and the largest shape of every input whose shape may change; none for a fixed model."""
        return self._ready().shapes()

    def close(self) -> None:
        engine, self._engine = self._engine, None
        if engine is not None:
            engine.close()


class Isolated:
    """A model in the process that holds the library; tensors pass through memory that both map."""

    def __init__(self, library: Path, cix: Cix, qos: Qos) -> None:
        self._library, self._handle = library, 0
        self._client: Client = CLIENTS.acquire(library)
        try:
            self._load(cix, qos)
        except BaseException as error:
            if isinstance(error, DeviceError) and error.code == GRAPH_VERSION:
                self._client.abandon()  # the library would crash in whatever comes next
            self.close()
            raise

    def _load(self, cix: Cix, qos: Qos) -> None:
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


def _agreed(
    artifact: Artifact, kind: str, specs: tuple[TensorSpec, ...], tensors: tuple[CixTensor, ...]
) -> tuple[TensorSpec, ...]:
    """Returns the manifest's specs in the order of the file, if they say of every tensor what the file says.

    The compiler orders inputs by name and may rename tensors: `details.names` of its manifest tells what they became.
    """
    if len(specs) != len(tensors):
        raise IntegrityError(
            f"{artifact.path}: the manifest has {len(specs)} tensors where the model has {len(tensors)}"
        )
    names = artifact.manifest.details.get("names", {}).get(kind, {})
    stated = {names.get(spec.name, spec.name): spec for spec in specs}
    agreed = []
    for own in (tensor.spec for tensor in tensors):
        spec = stated.get(own.name)
        same = spec is not None and (spec.shape, spec.dtype) == (own.shape, own.dtype)
        form = None if spec is None else spec.quantization
        if form is None or own.quantization is None:
            same = same and form is own.quantization
        else:
            close = math.isclose(form.scale[0], own.quantization.scale[0], rel_tol=1e-6)
            same = same and close and form.zero_point == own.quantization.zero_point and len(form.scale) == 1
        if spec is None or not same:
            raise IntegrityError(f"{artifact.path}: the manifest contradicts the model about tensor {own.name}")
        agreed.append(spec)
    return tuple(agreed)


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


def _qos(text: str) -> Qos:
    levels = {"": Qos.SLOW, "slow": Qos.SLOW, "high": Qos.HIGH}
    if text not in levels:
        raise ConfigError(f"no such priority: {text}", f"{QOS} is slow or high")
    return levels[text]
