"""Models and fleets for the tests of the serving engine: real sessions on small nets, and the fake NPU."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from anynpu.apps.serve.base import FleetSettings, ModelSettings, Observer, Request
from anynpu.apps.serve.fleet import Fleet, open_fleet
from anynpu.artifact import Artifact, Manifest, Step, seal
from anynpu.tensors import TensorSpec
from anynpu.testing.models import NOW

FAST = FleetSettings(canary_s=0, run_limit_s=20)


@asynccontextmanager
async def running(
    *models: ModelSettings, settings: FleetSettings = FAST, observer: Observer | None = None, **given: Any
) -> AsyncIterator[Fleet]:
    """A fleet that has started and takes any number of rows where it can; it is closed afterwards."""
    fleet = open_fleet(models, settings, observer, **given)
    try:
        await fleet.start()
        await until(lambda: not any(model.loosening for model in fleet.models.values()))
        yield fleet
    finally:
        fleet.close()


@contextmanager
def occupied(model: Any) -> Iterator[None]:
    """Keeps the owner of a model's device busy within the block: what is asked meanwhile waits."""
    gate = threading.Event()
    model.device.lane.call(gate.wait)
    try:
        yield
    finally:
        gate.set()


async def until(condition: Callable[[], Any], limit_s: float = 120.0) -> None:
    """Waits for something to be true; on a busy machine that may take a while."""
    end = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < end, condition
        await asyncio.sleep(0.005)


def sync(coroutine: Any) -> Any:
    return asyncio.run(coroutine)


def linear(folder: Path, factor: float = 2.0, width: int = 8, task: Mapping[str, Any] | None = None) -> Artifact:
    """A net that multiplies by a factor, [1, width] to [1, width], and whose rows do not depend on each other."""
    from onnx import TensorProto, helper, numpy_helper

    from anynpu.testing.models import save

    folder.mkdir(parents=True)
    shape = [1, width]
    graph = helper.make_graph(
        [helper.make_node("Mul", ["x", "factor"], ["y"], "times")],
        "linear",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, shape)],
        [numpy_helper.from_array(np.array(factor, np.float32), "factor")],
    )
    save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), folder / "model.onnx")
    specs = (TensorSpec("x", (1, width)),), (TensorSpec("y", (1, width)),)
    manifest = Manifest("onnx", "model.onnx", *specs, task=dict(task or {}))
    return seal(folder, manifest, Step("import"), NOW)


def settings_of(*artifacts: Artifact | Path, name: str = "m", **given: Any) -> ModelSettings:
    paths = tuple(a if isinstance(a, Path) else a.path for a in artifacts)
    return replace(ModelSettings(name, paths), **given)


def tensors(*arrays: Any, **given: Any) -> Request:
    return Request(tuple({"x": np.asarray(array)} for array in arrays), **given)
