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
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import numpy as np

from anynpu.artifact import Artifact
from anynpu.errors import ConfigError, DeviceError, IntegrityError, SuspectWarning, ToolMissing
from anynpu.runtime.base import check_names
from anynpu.runtime.noe import library as libraries
from anynpu.runtime.noe.abi import Qos
from anynpu.tensors import Array, TensorSpec

if TYPE_CHECKING:
    from anynpu.runtime.noe.cix import CixTensor
    from anynpu.runtime.noe.device import Info
    from anynpu.runtime.noe.engines import Engine, Parts, Ran, Shapes

ISOLATE, TIMEOUT_MS, QOS = "ANYNPU_NOE_ISOLATE", "ANYNPU_NOE_TIMEOUT_MS", "ANYNPU_NOE_QOS"
DEFAULT_TIMEOUT_MS, MOST_TIMEOUT_MS = 10_000, 3_600_000


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
        from anynpu.runtime.noe.cix import read_cix  # this class is loaded with all others, to ask what it runs

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
        from anynpu.runtime.noe.engines import InProcess, Isolated

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


def _qos(text: str) -> Qos:
    levels = {"": Qos.SLOW, "slow": Qos.SLOW, "high": Qos.HIGH}
    if text not in levels:
        raise ConfigError(f"no such priority: {text}", f"{QOS} is slow or high")
    return levels[text]
