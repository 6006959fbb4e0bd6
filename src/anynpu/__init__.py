"""anynpu: one model in, any NPU out. Compile it, prove it, run it, measure it, serve it.

    import anynpu

    built = anynpu.build(net, ["cpu", "ethos-u55-128"], data=samples)
    print(built["ethos-u55-128"].sqnr_db, built["ethos-u55-128"].placement.share)

The names below are imported when they are first used: `import anynpu` itself is cheap.
"""

import importlib
import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from anynpu import errors
    from anynpu.api.bench import Bench, bench
    from anynpu.api.bisect import bisect
    from anynpu.api.build import build, check
    from anynpu.api.compare import Comparison, compare
    from anynpu.api.result import Build, Checks, Chip, Layer
    from anynpu.api.session import Session, open
    from anynpu.api.task import Detection, detect, embed

__version__ = "0.1.0"

# ONNX Runtime's Linux wheels hold Microsoft's telemetry, which draws a device id and keeps events below ~/.cache
# (seen in 1.31.1) unless this is set before its import.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")

_PLACES = {
    "build": "build",
    "check": "build",
    "Build": "result",
    "Checks": "result",
    "Chip": "result",
    "Layer": "result",
    "open": "session",
    "Session": "session",
    "bench": "bench",
    "Bench": "bench",
    "bisect": "bisect",
    "compare": "compare",
    "Comparison": "compare",
    "detect": "task",
    "Detection": "task",
    "embed": "task",
}
__all__ = [
    "Bench",
    "Build",
    "Checks",
    "Chip",
    "Comparison",
    "Detection",
    "Layer",
    "Session",
    "bench",
    "bisect",
    "build",
    "check",
    "compare",
    "detect",
    "embed",
    "errors",
    "open",
]


def __getattr__(name: str) -> Any:
    if name == "errors":
        return importlib.import_module("anynpu.errors")
    if name not in _PLACES:
        raise AttributeError(f"module 'anynpu' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"anynpu.api.{_PLACES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_PLACES})
