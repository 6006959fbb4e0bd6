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
    from anynpu.api.build import build, check
    from anynpu.api.result import Build, Checks, Chip, Layer
    from anynpu.api.session import Session, open

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
}
__all__ = ["Build", "Checks", "Chip", "Layer", "Session", "build", "check", "open"]


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module 'anynpu' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"anynpu.api.{_PLACES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_PLACES})
