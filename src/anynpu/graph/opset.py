"""Which version of ONNX's own operators a model is written in."""

from __future__ import annotations

from onnx import ModelProto

STANDARD = ("", "ai.onnx")
"""The two names of ONNX's own domain."""


def opset_of(model: ModelProto) -> int:
    """Returns the version of ONNX's own operators that a model uses."""
    return max((entry.version for entry in model.opset_import if entry.domain in STANDARD), default=1)
