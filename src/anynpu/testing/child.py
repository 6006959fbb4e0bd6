"""The part of the kit that runs in a child process: looking at imports, and opening files that may crash a runtime."""

from __future__ import annotations

import importlib
import sys
from operator import attrgetter
from pathlib import Path
from typing import Any

from anynpu import schema
from anynpu.artifact import MANIFEST, Artifact, Manifest
from anynpu.errors import AnyNpuError
from anynpu.runtime.base import run_stored

HEAVY = frozenset(
    [
        "torch",
        "tensorflow",
        "onnxruntime",
        "onnxsim",
        "ai_edge_litert",
        "tflite_micro",
        "ethosu",
        "PIL",
        "rich",
    ]
)


def whereabouts(cls: type[Any]) -> dict[str, object]:
    """Returns the arguments from which a child process finds a class again."""
    return {"module": cls.__module__, "name": cls.__qualname__, "path": sys.path}


def _find(module: str, name: str, path: list[str]) -> Any:
    sys.path[:] = path
    return attrgetter(name)(importlib.import_module(module))


def _packages() -> set[str]:
    return {name.partition(".")[0] for name in sys.modules}


def probe_tools(module: str, name: str, path: list[str]) -> dict[str, object]:
    """Returns what a fresh target's tools() gives and which heavy packages were imported on the way."""
    target = _find(module, name, path)()
    before = _packages()
    try:
        answer: dict[str, object] = {"tools": dict(target.tools())}
    except AnyNpuError as error:
        answer = {"error": type(error).__name__, "hint": error.hint}
    own = {"anynpu", module.partition(".")[0]}
    fresh = _packages() - before - own - sys.stdlib_module_names
    return answer | {"imported": sorted(_packages() & HEAVY), "by_tools": sorted(fresh)}


def open_and_run(module: str, name: str, path: list[str], artifact: str, inputs: str) -> dict[str, object]:
    """Opens an artifact, sound or not, runs it and returns the outputs' digests, or the class of what it raises."""
    from anynpu.measure.samples import read_samples

    folder = Path(artifact)
    manifest = schema.from_dict(Manifest, schema.read_json(folder / MANIFEST), MANIFEST)
    session_class = _find(module, name, path)
    try:
        outputs = run_stored(session_class(Artifact(folder, manifest)), next(iter(read_samples(Path(inputs)))))
    except Exception as error:  # what a session raises is the very thing in question
        return {"raised": type(error).__name__, "message": str(error)}
    return {"outputs": {name: schema.digest(value.ravel().tolist()) for name, value in outputs.items()}}
