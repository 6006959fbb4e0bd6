"""What Quark wrote, read again: a model that is not of the precision asked for is refused, whatever the exit status."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from onnx import ModelProto, NodeProto, TensorProto, ValueInfoProto, numpy_helper

from anynpu.drivers.ryzen_facts import Precision
from anynpu.errors import IntegrityError
from anynpu.graph.cost import constant_names
from anynpu.graph.shapes import dtype_of, inputs_of, shape_of
from anynpu.targets.vitisai.prepare import STANDARD
from anynpu.tensors import Array, TensorSpec

MICROSOFT = "com.microsoft"
PAIR = ("QuantizeLinear", "DequantizeLinear")
MOVES = ("Reshape", "Transpose", "Squeeze", "Unsqueeze", "Flatten", "Slice", "Identity")


@dataclass(frozen=True)
class Kind:
    """How a precision stores its tensors; `weights` are constants of two axes and more, `biases` those of fewer."""

    domain: str
    activations: str
    zero_point: int
    weights: tuple[str, ...]
    biases: tuple[str, ...]
    power_of_two: bool


KINDS: Mapping[str, Kind] = {
    "xint8": Kind("", "uint8", 128, ("int8",), ("int8",), True),
    "a8w8": Kind(MICROSOFT, "int8", 0, ("int8",), ("int8", "int32"), False),
    "a16w8": Kind(MICROSOFT, "int16", 0, ("int8", "int16"), ("int8", "int16", "int32"), False),
}


def check_made(
    model: ModelProto, precision: Precision, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec]
) -> None:
    """Raises IntegrityError unless the model has the float model's borders and is of the precision."""
    _check_border("input", inputs_of(model), inputs)
    _check_border("output", list(model.graph.output), outputs)
    foreign = sorted({n.domain for n in model.graph.node} - {*STANDARD, MICROSOFT})
    if foreign:
        kinds = sorted({n.op_type for n in model.graph.node if n.domain in foreign})
        raise _wrong(precision, f"it has operators of {', '.join(foreign)}: {', '.join(kinds)}")
    for complaint in _bf16(model) if precision == "bf16" else _integers(model, KINDS[precision]):
        raise _wrong(precision, complaint)


def _wrong(precision: str, complaint: str) -> IntegrityError:
    return IntegrityError(f"what it wrote is no {precision} model: {complaint}")


def _check_border(what: str, made: Sequence[ValueInfoProto], given: Sequence[TensorSpec]) -> None:
    found = {value.name: (shape_of(value), dtype_of(value)) for value in made}
    wanted = {spec.name: (spec.shape, spec.dtype) for spec in given}
    if found != wanted:
        raise IntegrityError(f"what it wrote has other {what}s: {_told(found)}, the model has {_told(wanted)}")


def _told(border: Mapping[str, tuple[Sequence[int | str], str]]) -> str:
    return (
        ", ".join(f"{name} {dtype}[{','.join(map(str, shape))}]" for name, (shape, dtype) in border.items()) or "none"
    )


def _bf16(model: ModelProto) -> Iterator[str]:
    """Yields what speaks against a model whose tensors are rounded by casts to bfloat16 and back."""
    casts = [n for n in model.graph.node if n.op_type == "Cast" and cast_to(n) == TensorProto.BFLOAT16]
    if not casts:
        yield "nothing in it is cast to bfloat16"
    if any(n.op_type in PAIR for n in model.graph.node):
        yield "it has quantised tensors"


def cast_to(node: NodeProto) -> int:
    """Returns the type that a Cast gives."""
    return next((attribute.i for attribute in node.attribute if attribute.name == "to"), 0)


def _integers(model: ModelProto, kind: Kind) -> Iterator[str]:
    """Yields what speaks against a model of quantised integers."""
    stored = {tensor.name: tensor for tensor in model.graph.initializer}
    nodes = [n for n in model.graph.node if n.op_type in PAIR]
    rows = _rows(model)
    if not any(n.op_type == "QuantizeLinear" for n in nodes):
        yield "nothing in it is quantised"
    for node in nodes:
        for complaint in _pair(node, stored, kind, node.input[0] in rows):
            yield f"{node.name or node.output[0]}: {complaint}"


def _rows(model: ModelProto) -> set[str]:
    """Returns the tensors that are rows of a stored table, as embeddings are: they keep the form of its weights."""
    constants = constant_names(model.graph)
    rows: set[str] = set()
    for node in model.graph.node:
        looked_up = node.op_type == "Gather" and node.input[0] in constants
        if looked_up or (node.op_type in (*PAIR, *MOVES) and node.input[0] in rows):
            rows |= set(node.output)
    return rows


def _pair(node: NodeProto, stored: Mapping[str, TensorProto], kind: Kind, row: bool) -> Iterator[str]:
    if ("" if node.domain in STANDARD else node.domain) != kind.domain:
        yield f"{node.op_type} is of the domain {node.domain or 'ai.onnx'}"
    missing = [name for name in node.input[1:3] if name not in stored]
    if missing or len(node.input) < 3:
        yield "its scale or zero point is not stored"
        return
    scale, zero = (numpy_helper.to_array(stored[name]) for name in node.input[1:3])
    yield from _scale(scale, kind)
    if zero.size != 1:
        yield f"it has {zero.size} zero points, not one for the tensor"
    yield from _integer(zero, stored.get(node.input[0]), kind, row)


def _scale(scale: Array, kind: Kind) -> Iterator[str]:
    if scale.size != 1:
        yield f"it has {scale.size} scales, not one for the tensor"
    if not (np.isfinite(scale).all() and (scale > 0).all()):
        yield f"its scale is {scale.ravel()[0]:g}"
    elif kind.power_of_two and any(math.frexp(float(value))[0] != 0.5 for value in scale.ravel()):
        yield f"its scale {scale.ravel()[0]:g} is no power of two"


def _integer(zero: Array, constant: TensorProto | None, kind: Kind, row: bool) -> Iterator[str]:
    dtype, first = str(zero.dtype), int(zero.ravel()[0])
    if constant is None:
        as_weight = row and dtype in kind.weights and first == 0
        if (dtype, first) != (kind.activations, kind.zero_point) and not as_weight:
            yield f"an activation is {dtype} with zero point {first}, not {kind.activations} with {kind.zero_point}"
        return
    allowed = kind.weights if len(constant.dims) > 1 else kind.biases
    if dtype not in allowed or first != 0:
        yield f"a constant is {dtype} with zero point {first}, not {' or '.join(allowed)} with 0"
