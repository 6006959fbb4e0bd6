"""Which version of ONNX's own operators a model is written in."""

from __future__ import annotations

from onnx import ModelProto, helper, version_converter

from anynpu.errors import Finding, Unsupported

STANDARD = ("", "ai.onnx")
"""The two names of ONNX's own domain."""
SKLEARN = "ai.onnx.ml"
"""The domain of trees, linear models and encoders."""


def opset_of(model: ModelProto) -> int:
    """Returns the version of ONNX's own operators that a model uses."""
    return max((entry.version for entry in model.opset_import if entry.domain in STANDARD), default=1)


_CENTRED = 11
"""The first opset whose resizes count from the centres of elements, and say so."""
_FROM_CORNERS = {"coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}


def converted(model: ModelProto, opset: int) -> ModelProto:
    """Returns the model in a later opset; onnx's converter forgets how old opsets resize."""
    old = opset_of(model) < _CENTRED
    enlarged = {n.output[0] for n in model.graph.node if old and n.op_type in ("Upsample", "Resize")}
    result = version_converter.convert_version(model, opset)
    for node in result.graph.node:
        if node.op_type == "Resize" and node.output[0] in enlarged:
            stated = {item.name for item in node.attribute}
            missing = {name: value for name, value in _FROM_CORNERS.items() if name not in stated}
            node.attribute.extend(helper.make_attribute(name, value) for name, value in missing.items())
    return result


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
