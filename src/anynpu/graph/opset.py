"""Which version of ONNX's own operators a model is written in."""

from __future__ import annotations

from onnx import ModelProto

from anynpu.errors import Finding, Unsupported

STANDARD = ("", "ai.onnx")
"""The two names of ONNX's own domain."""


def opset_of(model: ModelProto) -> int:
    """Returns the version of ONNX's own operators that a model uses."""
    return max((entry.version for entry in model.opset_import if entry.domain in STANDARD), default=1)


def refuse_foreign(model: ModelProto) -> None:
    """Raises Unsupported for operators of other domains: trees and encoders of scikit-learn, a vendor's own."""
    findings = [
        Finding("foreign-operator", f"{node.domain}.{node.op_type} is not one of ONNX's own operators", node.name)
        for node in model.graph.node
        if node.domain not in STANDARD
    ]
    if findings:
        raise Unsupported(
            f"{len(findings)} operator(s) are of other domains, first {findings[0]}",
            findings,
            "export the model in ONNX's own operators, and leave trees and encoders to the host",
        )
