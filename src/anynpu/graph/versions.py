"""What simplifies a model here, without importing it: a build that finds everything in the store needs no onnx."""

from __future__ import annotations

import contextlib

from anynpu import tool
from anynpu.errors import ToolMissing


def tool_versions() -> dict[str, str]:
    """Returns the versions of the packages that simplify a model here, without importing them."""
    versions = {name: tool.version_of(name) for name in ("onnx", "onnx-ir")}
    with contextlib.suppress(ToolMissing):
        versions["onnxsim"] = tool.version_of("onnxsim")
    return versions
