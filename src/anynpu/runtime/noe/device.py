"""The NPU through the vendor's library: one context, its graphs and their jobs.

All calls of one `Device` come from one thread (see runtime/owner.py and worker.py). The library takes no lengths: every
buffer is a `Memory` whose size is compared with the descriptor before its address is handed over. This module imports
neither numpy nor anything heavy: the process that only serves the library starts fast.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NamedTuple

from anynpu.errors import ConfigError, DeviceError
from anynpu.runtime.noe import abi
from anynpu.runtime.noe.abi import Ioctl, Qos, TensorKind
from anynpu.runtime.noe.library import Library
from anynpu.runtime.noe.status import GRAPH_VERSION, SUCCESS, failure

clock = time.perf_counter_ns
MOST_TENSORS = 256


class Memory(NamedTuple):
    """A buffer: its address and its size in bytes. Whoever made it keeps it alive."""

    address: int
    nbytes: int


class Descriptor(NamedTuple):
    """A tensor as the library describes it, in the vendor's convention."""

    id: int
    nbytes: int
    scale: float
    zero_point: int
    dtype: int


class Times(NamedTuple):
    """Nanoseconds of one inference inside the library."""

    load: int
    infer: int
    fetch: int


@dataclass(frozen=True)
class Info:
    """What the device says of itself; `cores` has one row a partition, with the cores of each cluster."""

    target: str
    library: str
    driver: str
    cores: tuple[tuple[int, ...], ...]


class Device:
    """A context of the library. `close` gives it back, and nothing may be called afterwards."""

    def __init__(self, library: Library) -> None:
        self.library = library
        self._handle: int | None = None
        self._spoilt = False
        handle = ctypes.c_void_p()
        with library.quiet():
            status = library.calls.noe_init_context(ctypes.byref(handle))
        if status != SUCCESS or not handle.value:
            raise failure("noe_init_context", status)
        self._handle = handle.value

    @property
    def handle(self) -> int:
        if self._handle is None:
            raise DeviceError("the NPU was closed", "noe_init_context")
        return self._handle

    def call(self, name: str, *arguments: Any) -> None:
        """Calls the library; any status but success raises."""
        with self.library.quiet():
            status = getattr(self.library.calls, name)(self.handle, *arguments)
        if status != SUCCESS:
            raise failure(name, status)

    def close(self) -> None:
        """Gives the context back, with all its graphs and jobs."""
        if self._handle is None:
            return
        # After a graph was refused for its version, giving the context back crashes the library.
        if not self._spoilt:
            with suppress(DeviceError):
                self.call("noe_deinit_context")
        self._handle = None

    def spoil(self) -> None:
        """Notes that the library is in a state in which nothing more may be asked of it."""
        self._spoilt = True

    def info(self) -> Info:
        """Returns target, versions and cores."""
        target = ctypes.create_string_buffer(abi.TARGET_BYTES)
        self.call("noe_get_target", target)
        version = abi.DriverVersion()
        self.ioctl(Ioctl.GET_VERSION, version)
        partitions = range(self._count("noe_get_partition_count"))
        clusters = {p: range(self._count("noe_get_cluster_count", p)) for p in partitions}
        cores = tuple(tuple(self._count("noe_get_core_count", p, c) for c in clusters[p]) for p in partitions)
        name, library, driver = (text.decode("ascii", "replace") for text in (target.value, version.umd, version.kmd))
        return Info(name, library, driver, cores)

    def _count(self, name: str, *arguments: Any) -> int:
        count = ctypes.c_uint32()
        self.call(name, *arguments, ctypes.byref(count))
        return count.value

    def ioctl(self, command: Ioctl, argument: ctypes.Structure) -> None:
        self.call("noe_ioctl", abi.NPU, int(command), ctypes.addressof(argument))

    def message(self, code: int) -> str:
        """Returns the library's own words for a status."""
        text = ctypes.c_char_p()
        self.call("noe_get_error_message", code, ctypes.byref(text))
        return (text.value or b"").decode("ascii", "replace")


class Graph:
    """A loaded model with one job that serves one inference after the other.

    `program` must stay where it is until `close`: the library keeps its address.
    """

    def __init__(self, device: Device, program: Memory, qos: Qos = Qos.SLOW) -> None:
        self._device, self._qos, self._job = device, qos, 0
        self._fitting: tuple[Sequence[Memory], Sequence[Memory]] = ((), ())
        identity = ctypes.c_uint64()
        inner = abi.GraphConfigNpu()
        config = abi.GraphConfig(ctypes.pointer(inner))
        try:
            device.call(
                "noe_load_graph_helper", program.address, program.nbytes, ctypes.byref(identity), ctypes.byref(config)
            )
        except DeviceError as error:
            if error.code == GRAPH_VERSION:
                device.spoil()
            raise
        self._id = identity.value
        self.inputs = self._descriptors(TensorKind.INPUT)
        self.outputs = self._descriptors(TensorKind.OUTPUT)

    def _descriptors(self, kind: TensorKind) -> tuple[Descriptor, ...]:
        count = ctypes.c_uint32()
        self._device.call("noe_get_tensor_count", self._id, kind, ctypes.byref(count))
        if count.value > MOST_TENSORS:
            raise DeviceError(f"noe_get_tensor_count says {count.value}", "noe_get_tensor_count")
        descriptors = []
        for index in range(count.value):
            d = abi.TensorDesc()
            self._device.call("noe_get_tensor_descriptor", self._id, kind, index, ctypes.byref(d))
            descriptors.append(Descriptor(d.id, d.size, d.scale, d.zero_point, d.data_type))
        return tuple(descriptors)

    def _ready_job(self) -> int:
        if not self._job:
            job = ctypes.c_uint64()
            config = abi.job_config(self._qos)
            self._device.call("noe_create_job", self._id, ctypes.byref(job), ctypes.byref(config))
            self._job = job.value
        return self._job

    def _discard_job(self) -> None:
        job, self._job = self._job, 0  # forgotten first: ids are given out again, and an old one means another job
        if job:
            with suppress(DeviceError):
                self._device.call("noe_clean_job", job)

    def _failed(self, call: str, status: int) -> DeviceError:
        """Returns the error; the job is thrown away, since after a failure or a timeout it may never work again."""
        self._discard_job()
        return failure(call, status)

    def run(self, inputs: Sequence[Memory], outputs: Sequence[Memory], timeout_ms: int) -> Times:
        """Runs the model once and returns how long its parts took.

        Every input is loaded every time: the device may use its memory for intermediate results.
        """
        if (inputs, outputs) != self._fitting:
            _fits(inputs, self.inputs, "input")
            _fits(outputs, self.outputs, "output")
            self._fitting = inputs, outputs
        calls, handle, job = self._device.library.calls, self._device.handle, self._job or self._ready_job()
        began = clock()
        for index, memory in enumerate(inputs):
            if status := calls.noe_load_tensor(handle, job, index, memory.address):
                raise self._failed("noe_load_tensor", status)
        loaded = clock()
        if status := calls.noe_job_infer_sync(handle, job, timeout_ms):
            raise self._failed("noe_job_infer_sync", status)
        inferred = clock()
        for index, memory in enumerate(outputs):
            if status := calls.noe_get_tensor(handle, job, TensorKind.OUTPUT, index, memory.address):
                raise self._failed("noe_get_tensor", status)
        return Times(loaded - began, inferred - loaded, clock() - inferred)

    def build_version(self) -> int:
        """Returns the compiler's version as the library reads it from the model."""
        version = abi.BuildVersion(graph_id=self._id)
        self._device.ioctl(Ioctl.GET_BUILD_VERSION, version)
        return int(version.version)

    def dynamic_shapes(self) -> tuple[tuple[tuple[int, ...], tuple[int, ...]], ...]:
        """Returns the smallest and the largest shape of every input whose shape may change; none for a fixed model."""
        count = ctypes.c_uint32()
        self._device.ioctl(Ioctl.GET_DS_NUM, abi.DynshapeNum(self._id, ctypes.pointer(count)))
        return tuple((self._shape(i, False), self._shape(i, True)) for i in range(min(count.value, MOST_TENSORS)))

    def _shape(self, index: int, most: bool) -> tuple[int, ...]:
        axes = ctypes.c_uint32()
        self._device.ioctl(Ioctl.GET_DS_DIM_NUM, abi.DynshapeInfo(self._id, index, most, ctypes.pointer(axes)))
        if axes.value > abi.MOST_AXES:
            raise DeviceError(f"the library says that input {index} has {axes.value} axes", "noe_ioctl")
        sizes = (ctypes.c_uint32 * abi.MOST_AXES)()
        at = ctypes.cast(sizes, ctypes.POINTER(ctypes.c_uint32))
        self._device.ioctl(Ioctl.GET_DS_INFO, abi.DynshapeInfo(self._id, index, most, at))
        return tuple(sizes[: axes.value])

    def close(self) -> None:
        """Throws the job away and unloads the model."""
        self._discard_job()
        identity, self._id = self._id, 0
        if identity:
            with suppress(DeviceError):
                self._device.call("noe_unload_graph", identity)


def _fits(memories: Sequence[Memory], descriptors: Sequence[Descriptor], what: str) -> None:
    """Raises unless every buffer has the size of its tensor: the library reads and writes without asking."""
    if len(memories) != len(descriptors):
        raise ConfigError(f"the model has {len(descriptors)} {what}s, {len(memories)} were given")
    for memory, descriptor in zip(memories, descriptors, strict=True):
        if memory.nbytes != descriptor.nbytes or not memory.address:
            raise ConfigError(
                f"{what} {descriptor.id} has {descriptor.nbytes} bytes, a buffer of {memory.nbytes} was given"
            )
