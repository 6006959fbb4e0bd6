"""What is in the way of a model on a Ryzen AI NPU: each rule a function whose docstring the user reads."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import resources

from onnx import ModelProto, NodeProto

from anynpu import schema
from anynpu.drivers.ryzen_facts import Precision
from anynpu.errors import Finding
from anynpu.graph.cost import constant_names
from anynpu.graph.fold import static_shapes
from anynpu.graph.opset import STANDARD
from anynpu.graph.shapes import infer, inputs_of, shape_of
from anynpu.targets.vitisai.prepare import in_opset

QUANTISED = {"QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear"}
BORDERS = {1: "float32", 6: "int32", 7: "int64"}


@dataclass(frozen=True)
class Operators:
    """AMD's list of operators that the NPU computes, by the model's precision."""

    source: str
    xint8: tuple[str, ...]
    a8w8: tuple[str, ...]
    a16w8: tuple[str, ...]
    bf16: tuple[str, ...]

    def of(self, precision: Precision) -> frozenset[str]:
        """Returns the operators of one precision."""
        listed: tuple[str, ...] = getattr(self, precision)
        return frozenset(listed)


@functools.cache
def operators() -> Operators:
    """Returns AMD's list."""
    with resources.as_file(resources.files("anynpu.data") / "ryzen-ai-operators.toml") as file:
        return schema.from_dict(Operators, schema.read_toml(file), file.name)


ModelRule = Callable[[ModelProto], Iterator[str]]
RULES: dict[str, ModelRule] = {}


def rule(function: ModelRule) -> ModelRule:
    """Registers a rule; it yields the names of what breaks it."""
    RULES[function.__name__] = function
    return function


@rule
def batch_is_one(model: ModelProto) -> Iterator[str]:
    """The batch size must be 1: the NPU is given one sample at a time."""
    for value in inputs_of(model):
        dims = shape_of(value)
        if not dims or (isinstance(dims[0], int) and dims[0] != 1):
            yield value.name


@rule
def static_shapes_only(model: ModelProto) -> Iterator[str]:
    """Every dimension must be fixed: the compiler plans memory ahead; export with a fixed shape or give --shape."""
    shapes = static_shapes(infer(model, strict=False).graph)
    yield from (value.name for value in inputs_of(model) if value.name not in shapes)
    for node in model.graph.node:
        if node.domain in STANDARD and any(name and name not in shapes for name in node.output):
            yield node.name or node.output[0]


@rule
def is_float(model: ModelProto) -> Iterator[str]:
    """The model is quantised already: give the float model, Quark quantises it with the calibration data."""
    yield from (node.name or node.output[0] for node in model.graph.node if node.op_type in QUANTISED)


@rule
def standard_operators(model: ModelProto) -> Iterator[str]:
    """The operator is none of ONNX's own, and Quark knows no other."""
    yield from (node.name or node.output[0] for node in model.graph.node if node.domain not in STANDARD)


@rule
def border_types(model: ModelProto) -> Iterator[str]:
    """Inputs and outputs must be float32, int32 or int64: cast other types outside the model."""
    for value in (*inputs_of(model), *model.graph.output):
        if value.type.tensor_type.elem_type not in BORDERS:
            yield value.name


def broken(model: ModelProto) -> tuple[Finding, ...]:
    """Returns what keeps a model from being quantised at all."""
    findings = []
    for name, function in RULES.items():
        sentence = (function.__doc__ or "").strip()
        findings += [Finding(name, sentence, where) for where in function(model)]
    return tuple(findings)


def off_the_list(node: NodeProto, precision: Precision) -> str:
    """Returns why AMD's list does not promise a node to the NPU, or an empty string."""
    if node.domain in STANDARD and node.op_type in operators().of(precision):
        return ""
    return f"AMD's list of operators for the NPU has no {node.op_type} in {precision}"


def unlisted(model: ModelProto, precision: Precision) -> tuple[Finding, ...]:
    """Returns the operators that run on the CPU as far as AMD's list tells; constants are computed before."""
    constants = constant_names(model.graph)
    pairs = [(node, off_the_list(node, precision)) for node in model.graph.node if not set(node.output) <= constants]
    return tuple(
        Finding("operator_listed", f"{why}: it runs on the CPU.", node.name or node.output[0])
        for node, why in pairs
        if why
    )


def other_opset(model: ModelProto, opset: int) -> tuple[Finding, ...]:
    """Returns why the model cannot be written in the opset that AMD advises."""
    _, reason = in_opset(model, opset)
    return (Finding("opset", f"The model cannot be written in opset {opset}: {reason}.", ""),) if reason else ()
