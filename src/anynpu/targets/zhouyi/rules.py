"""What cixbuild refuses, as functions over a graph that was rewritten already: the docstring is what the user reads.

The seeds of these rules are reports on CixBuilder 6.1.3407 (Sub, Equal, Where, Shape) and 6.1.3753 (Scan, Loop); what a
rewrite removes (Sub, masks) is never judged here. `-O trust_compiler=true` hands the model over all the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import onnx
from onnx import ModelProto, NodeProto

from anynpu.errors import Finding
from anynpu.graph.fold import static_shapes
from anynpu.graph.shapes import infer, inputs_of, shape_of

NodeRule = Callable[[NodeProto], bool]
RULES: dict[str, NodeRule] = {}
COMPARISONS = {"Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual", "Not", "And", "Or", "Xor"}
DYNAMIC = {"Shape", "Size", "NonZero", "Unique", "Compress", "ConstantOfShape", "Range", "NonMaxSuppression"}
QUANTISED = {"QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear"}
DOMAINS = ("", "ai.onnx")


def rule(function: NodeRule) -> NodeRule:
    """Registers a rule; it returns whether a node keeps it."""
    RULES[function.__name__] = function
    return function


@rule
def no_comparison(node: NodeProto) -> bool:
    """Comparisons and logic are unsupported: compute the mask outside and make it an input of 0 and -30 to add."""
    return node.op_type not in COMPARISONS


@rule
def no_where(node: NodeProto) -> bool:
    """Where is unsupported: multiply by a mask of 0 and 1, or add one of 0 and -30, that is an input."""
    return node.op_type != "Where"


@rule
def no_shape(node: NodeProto) -> bool:
    """Sizes that are computed from data are unsupported: export with fixed shapes, so that they fold into constants."""
    return node.op_type not in DYNAMIC


@rule
def no_scan(node: NodeProto) -> bool:
    """Loops and branches are unsupported: the parser unrolls those with a constant count only; unroll in the export."""
    return node.op_type not in ("Scan", "Loop", "If")


@rule
def no_sequence(node: NodeProto) -> bool:
    """Sequences, texts and optional values are unsupported: only tensors of numbers are compiled."""
    return not node.op_type.startswith(("Sequence", "String", "Optional", "SplitToSequence", "ConcatFromSequence"))


@rule
def is_float(node: NodeProto) -> bool:
    """The model is quantised already: give the float model, cixbuild quantises it with the calibration data."""
    return node.op_type not in QUANTISED


@rule
def standard_operator(node: NodeProto) -> bool:
    """The operator is none of ONNX's own, and the parser knows no other."""
    return node.domain in DOMAINS


def findings(model: ModelProto) -> tuple[Finding, ...]:
    """Returns every reason against compiling a graph: its shapes, its inputs and outputs, its operators."""
    reasons = list(_shapes(model))
    for value in (*inputs_of(model), *model.graph.output):
        if value.type.tensor_type.elem_type in (onnx.TensorProto.BOOL, onnx.TensorProto.STRING):
            words = "Inputs and outputs are numbers: cast truth values outside."
            reasons.append(Finding("border_type", words, value.name))
    for node in model.graph.node:
        for name, keeps in RULES.items():
            if not keeps(node):
                reasons.append(Finding(name, f"{node.op_type}: {keeps.__doc__}", node.name or node.output[0]))
    return tuple(reasons)


def _shapes(model: ModelProto) -> Iterator[Finding]:
    shapes = static_shapes(infer(model, strict=False).graph)
    for value in inputs_of(model):
        if value.name not in shapes:
            dims = ",".join(map(str, shape_of(value)))
            yield Finding("static_shapes", f"The shape [{dims}] is not fixed: the NPU plans memory ahead.", value.name)
        elif shapes[value.name] and shapes[value.name][0] != 1:
            yield Finding("batch_is_one", f"The batch is {shapes[value.name][0]}; calibration takes 1.", value.name)
        elif not shapes[value.name]:
            yield Finding("batch_is_one", "The input is a single number without a batch axis.", value.name)
    for node in model.graph.node:
        if any(name and name not in shapes for name in node.output):
            yield Finding("static_shapes", "The size of the result depends on data.", node.name or node.output[0])
