"""What the Hexagon NPU is known to refuse; each rule's docstring is the sentence that the user reads."""

from __future__ import annotations

import onnx

from anynpu.errors import Finding

LACKS = frozenset({"Acosh", "Cosh", "Det", "Erf", "If", "Loop", "NonMaxSuppression", "NonZero", "Scan", "Softsign"})
"""Operators that onnxruntime-qnn 2.7.0 leaves to the CPU."""
MAX_AXES = 6


def findings(model: onnx.ModelProto) -> tuple[Finding, ...]:
    """Returns why the model would not run whole on the NPU; the compiler has the last word."""
    lacking = []
    for node in model.graph.node:
        if node.op_type in LACKS:
            where = node.name or (node.output[0] if node.output else node.op_type)
            words = f"{node.op_type}: the HTP of onnxruntime-qnn has no such operator"
            lacking.append(Finding("operator", words, where))
    return (*_loose_inputs(model), *lacking, *_many_axes(model))


def _loose_inputs(model: onnx.ModelProto) -> list[Finding]:
    """The provider takes inputs of a fixed shape only."""
    stored = {tensor.name for tensor in model.graph.initializer}
    return [
        Finding("static_shapes", _loose_inputs.__doc__ or "", value.name)
        for value in model.graph.input
        if value.name not in stored and any(not dim.HasField("dim_value") for dim in value.type.tensor_type.shape.dim)
    ]


def _many_axes(model: onnx.ModelProto) -> list[Finding]:
    """The HTP takes tensors of at most six axes."""
    values = (*model.graph.input, *model.graph.value_info, *model.graph.output)
    return [
        Finding("axes", _many_axes.__doc__ or "", value.name)
        for value in values
        if len(value.type.tensor_type.shape.dim) > MAX_AXES
    ]
