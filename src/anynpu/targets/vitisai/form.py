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
from anynpu.graph.opset import STANDARD
from anynpu.graph.shapes import dtype_of, inputs_of, shape_of
from anynpu.tensors import TensorSpec

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
    nodes = model.graph.node
    foreign = sorted({n.domain for n in nodes} - {*STANDARD, MICROSOFT})
    complaint = ""
    if foreign:
        kinds = sorted({n.op_type for n in nodes if n.domain in foreign})
        complaint = f"it has operators of {', '.join(foreign)}: {', '.join(kinds)}"
    elif precision != "bf16":
        complaint = next(_integers(model, KINDS[precision]), "")
    # Tensors are rounded by casts to bfloat16 and back.
    elif not any(n.op_type == "Cast" and cast_to(n) == TensorProto.BFLOAT16 for n in nodes):
        complaint = "nothing in it is cast to bfloat16"
    elif any(n.op_type in PAIR for n in nodes):
        complaint = "it has quantised tensors"
    if complaint:
        raise IntegrityError(f"what it wrote is not a model in {precision}: {complaint}")


def _check_border(what: str, values: Sequence[ValueInfoProto], specs: Sequence[TensorSpec]) -> None:
    present = {value.name: (shape_of(value), dtype_of(value)) for value in values}
    wanted = {spec.name: (spec.shape, spec.dtype) for spec in specs}
    if present != wanted:
        raise IntegrityError(f"what it wrote has other {what}s: {_told(present)}, the model has {_told(wanted)}")


def _told(border: Mapping[str, tuple[Sequence[int | str], str]]) -> str:
    return (
        ", ".join(f"{name} {dtype}[{','.join(map(str, shape))}]" for name, (shape, dtype) in border.items()) or "none"
    )


def cast_to(node: NodeProto) -> int:
    """Returns the type that a Cast gives."""
    return next((attribute.i for attribute in node.attribute if attribute.name == "to"), 0)


def _integers(model: ModelProto, kind: Kind) -> Iterator[str]:
    """Yields what speaks against a model of quantised integers."""
    stored = {tensor.name: tensor for tensor in model.graph.initializer}
    nodes = [n for n in model.graph.node if n.op_type in PAIR]
    # What is looked up in a stored table, as embeddings are, keeps the form of its weights.
    constants, rows = constant_names(model.graph), set[str]()
    for node in model.graph.node:
        looked_up = node.op_type == "Gather" and node.input[0] in constants
        if looked_up or (node.op_type in (*PAIR, *MOVES) and node.input[0] in rows):
            rows |= set(node.output)
    if not any(n.op_type == "QuantizeLinear" for n in nodes):
        yield "nothing in it is quantised"
    for node in nodes:
        place = node.name or node.output[0]
        if ("" if node.domain in STANDARD else node.domain) != kind.domain:
            yield f"{place}: {node.op_type} is of the domain {node.domain or 'ai.onnx'}"
        if len(node.input) < 3 or any(name not in stored for name in node.input[1:3]):
            yield f"{place}: its scale or zero point is not stored"
            continue
        scale, zero = (numpy_helper.to_array(stored[name]) for name in node.input[1:3])
        if scale.size != 1:
            yield f"{place}: it has {scale.size} scales, not one for the tensor"
        if not (np.isfinite(scale).all() and (scale > 0).all()):
            yield f"{place}: its scale is {scale.ravel()[0]:g}"
        elif kind.power_of_two and any(math.frexp(float(value))[0] != 0.5 for value in scale.ravel()):
            yield f"{place}: its scale {scale.ravel()[0]:g} is not a power of two"
        if zero.size != 1:
            yield f"{place}: it has {zero.size} zero points, not one for the tensor"
        form, constant = (str(zero.dtype), int(zero.ravel()[0])), stored.get(node.input[0])
        shown = f"{form[0]} with zero point {form[1]}"
        if constant is not None:
            allowed = kind.weights if len(constant.dims) > 1 else kind.biases
            if form[0] not in allowed or form[1] != 0:
                yield f"{place}: a constant is {shown}, not {' or '.join(allowed)} with 0"
        # The rows of a stored table, as embeddings are, keep the form of its weights.
        elif form != (kind.activations, kind.zero_point) and not (
            node.input[0] in rows and form[0] in kind.weights and form[1] == 0
        ):
            yield f"{place}: an activation is {shown}, not {kind.activations} with {kind.zero_point}"
