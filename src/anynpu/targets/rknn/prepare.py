"""The ONNX graph as RKNN-Toolkit2 2.5.0 reads it, and the rules that say what it does not."""

from __future__ import annotations

import re
from collections.abc import Callable

from onnx import ModelProto, NodeProto

from anynpu.errors import Finding, first_line
from anynpu.foreign import ONNX
from anynpu.graph.opset import STANDARD, converted, opset_of
from anynpu.graph.shapes import inputs_of, shape_of

MAX_OPSET, MAX_IR = 19, 10
BRANCHES = {"If", "Loop", "Scan"}
DATA_DEPENDENT = {"NonZero", "NonMaxSuppression", "Unique", "Compress"}
BATCH = "The batch must be 1: the toolkit is given samples one at a time."
COLOUR = re.compile(r"\x1b\[[0-9;]*m")


def prepared(model: ModelProto) -> tuple[ModelProto, tuple[str, ...]]:
    """Returns the model in an opset that the toolkit reads, and what was done to it."""
    opset = opset_of(model)
    notes: tuple[str, ...] = ()
    if opset > MAX_OPSET:
        model = converted(model, MAX_OPSET)
        notes = (f"opset {opset} lowered to {MAX_OPSET}",)
    if model.ir_version > MAX_IR:
        changed = ModelProto()
        changed.CopyFrom(model)
        changed.ir_version = MAX_IR
        model = changed
    return model, notes


def no_branches(node: NodeProto) -> bool:
    """Operators with graphs of their own (If, Loop, Scan) make a dynamic graph, which the toolkit refuses."""
    return node.op_type not in BRANCHES


def sizes_are_known(node: NodeProto) -> bool:
    """An output whose size depends on the data makes a dynamic graph, which the toolkit refuses."""
    return node.op_type not in DATA_DEPENDENT


def no_cubic_resize(node: NodeProto) -> bool:
    """A cubic Resize crashes the toolkit's compiler; use linear or nearest."""
    mode = next((a.s for a in node.attribute if a.name == "mode"), b"nearest")
    return node.op_type != "Resize" or mode != b"cubic"


def onnx_own_operators(node: NodeProto) -> bool:
    """Operators outside ONNX's own set need custom code, which is not supported here."""
    return node.domain in STANDARD


RULES: tuple[Callable[[NodeProto], bool], ...] = (no_branches, sizes_are_known, no_cubic_resize, onnx_own_operators)


def findings(model: ModelProto) -> tuple[Finding, ...]:
    """Returns what the toolkit would refuse in the model."""
    refused = []
    for value in inputs_of(model):
        shape = shape_of(value)
        if any(isinstance(size, str) for size in shape):
            refused.append(Finding("shapes_are_static", "The shape must be fixed: give it with --shape.", value.name))
        elif shape and shape[0] != 1:
            refused.append(Finding("batch_is_one", BATCH, value.name))
    if opset_of(model) > MAX_OPSET:
        try:
            prepared(model)
        except ONNX as error:
            text = f"Opset {opset_of(model)} is above {MAX_OPSET} and cannot be lowered ({first_line(error)})."
            refused.append(Finding("opset", text))
    refused += [
        Finding(rule.__name__, rule.__doc__ or "", f"{node.op_type} {node.name or node.output[0]}")
        for node in model.graph.node
        for rule in RULES
        if not rule(node)
    ]
    return tuple(refused)


# What it prints for a model that it does not take: the operator or input, and why.
REFUSALS = (
    re.compile(r"E (?:build|load_onnx): (?P<why>The (?P<where>\w+\('[^']*'\)) will cause [^!\n]*!)"),
    re.compile(r"E (?:build|load_onnx): (?P<why>The input \d+ of (?P<where>\w+\('[^']*'\)) need to be constant!)"),
    re.compile(r"E (?:build|load_onnx): (?P<why>The input shape \[[^\]]*\] of '(?P<where>[^']*)' is not support!)"),
    re.compile(r"E (?:build|load_onnx): (?P<why>Unsupport onnx opset \d+[^\n]*)(?P<where>)"),
    re.compile(r"E (?:build|load_onnx): (?P<why>[^\n]*[Uu]nsupport[^\n]*?'?(?P<where>\w*)'?[^\n]*)"),
    re.compile(r"E (?:build|load_onnx): (?P<why>[^\n]*[Nn]ot support[^\n]*)(?P<where>)"),
    re.compile(r"E RKNN: \[[\d:.]+\] (?P<why>Meet unsupported (?P<where>\w+)[^\n]*)"),
)


def refusals(text: str) -> tuple[Finding, ...]:
    """Returns why the toolkit refused a model, in its own words."""
    plain = COLOUR.sub("", text)
    for pattern in REFUSALS:
        reasons = {(m["where"], m["why"].strip()) for m in pattern.finditer(plain)}
        if reasons:
            return tuple(Finding("rknn", f"RKNN-Toolkit2: {why}", where) for where, why in sorted(reasons))
    return ()


def last_error(text: str) -> str:
    """Returns the last complaint that the toolkit printed, or an empty string."""
    lines = [line for line in COLOUR.sub("", text).splitlines() if line.startswith(("E ", "E RKNN"))]
    useful = [line for line in lines if "Traceback" not in line and "version:" not in line]
    return useful[-1][2:].strip() if useful else ""
