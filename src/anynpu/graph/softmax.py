"""Softmax that exporters write out: exponentials over their sum, or scores less the logarithm of that sum.

Rounded node by node it loses what it computes: the exponential of a small score is below one step of the largest.
"""

from __future__ import annotations

from collections.abc import Mapping

from onnx import ModelProto, NodeProto, helper

from anynpu.graph.attributes import numbers
from anynpu.graph.fold import with_nodes
from anynpu.graph.idle import Known
from anynpu.graph.opset import STANDARD, opset_of
from anynpu.graph.passes import Pass

# What may stand between a sum and who reads it: its values stay, and their order.
_VIEWS = ("Reshape", "Squeeze", "Unsqueeze", "Expand", "Identity")
BY_AXIS = 13
"""The opset from which Softmax is over its axis alone, and not over all behind it."""


def with_softmax(model: ModelProto) -> tuple[ModelProto, int]:
    """Returns the model with one node for each softmax that is written out, and how many there are."""
    known, opset = Known.of(model), opset_of(model)
    makers = {name: node for node in model.graph.node for name in node.output if node.domain in STANDARD}
    nodes, changed = list[NodeProto](), 0
    for node in model.graph.node:
        match = _scores(node, makers, known) if node.domain in STANDARD else None
        if match is None or (opset < BY_AXIS and match[1] != len(known.shapes[match[0]]) - 1):
            nodes.append(node)
            continue
        kind = "LogSoftmax" if node.op_type == "Sub" else "Softmax"
        nodes.append(helper.make_node(kind, [match[0]], list(node.output), node.name, axis=match[1]))
        changed += 1
    return (with_nodes(model, nodes), changed) if changed else (model, 0)


def _scores(node: NodeProto, makers: Mapping[str, NodeProto], known: Known) -> tuple[str, int] | None:
    """Returns the scores that a node is the softmax of, and the axis that it is over; None for any other node."""
    through = {"Div": "", "Mul": "Reciprocal", "Sub": "Log"}.get(node.op_type)
    if through is None:
        return None
    for first, second in ((0, 1), (1, 0)) if node.op_type == "Mul" else ((0, 1),):
        total = _behind(node.input[second], makers, through)
        exponential = makers.get(total.input[0]) if total is not None and total.op_type == "ReduceSum" else None
        if total is None or exponential is None or exponential.op_type != "Exp":
            continue
        scores = exponential.input[0]
        shape = known.shapes.get(scores)
        axes = known.constant(total, 1) if len(total.input) > 1 else numbers(total, "axes")
        if node.input[first] != (scores if through == "Log" else exponential.output[0]) or not shape:
            continue
        if axes is None or len(axes) != 1:
            continue
        axis = int(axes[0]) % len(shape)
        repeat = makers.get(node.input[second])
        divisor = repeat.input[0] if repeat is not None and repeat.op_type == "Expand" else node.input[second]
        if _aligned(divisor, shape, known) != (*shape[:axis], 1, *shape[axis + 1 :]):
            continue
        # What is taken from all scores alike, mostly the largest, changes nothing.
        while (shift := makers.get(scores)) is not None and shift.op_type == "Sub":
            aligned = _aligned(shift.input[1], shape, known)
            if known.shapes.get(shift.input[0]) != shape or not aligned or aligned[axis] != 1:
                break
            scores = shift.input[0]
        return scores, axis
    return None


def _behind(name: str, makers: Mapping[str, NodeProto], through: str) -> NodeProto | None:
    """Returns what makes a tensor behind views, and behind one node of a kind that must be among them."""
    passed = not through
    while (maker := makers.get(name)) is not None and (maker.op_type in _VIEWS or maker.op_type == through):
        if maker.op_type == through:
            if passed:
                return None
            passed = True
        name = maker.input[0]
    return maker if passed else None


def _aligned(name: str, shape: tuple[int, ...], known: Known) -> tuple[int, ...]:
    """Returns the shape of a tensor that is broadcast to another, with as many axes; nothing where it is not known."""
    own = known.shapes.get(name)
    return () if own is None or len(own) > len(shape) else (1,) * (len(shape) - len(own)) + own


SOFTMAX = Pass(
    "softmax",
    "a softmax that is written out becomes one node",
    with_softmax,
    requires=lambda model: "" if any(node.op_type == "Exp" for node in model.graph.node) else "it has no exponentials",
)
