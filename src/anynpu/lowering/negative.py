"""Places counted from the end, which ONNX writes as negative numbers, as places counted from the front.

No TFLite kernel reads them. Where a place is computed and may be below zero, the size of the axis is added if it is.
"""

from __future__ import annotations

import numpy as np
import onnx

from anynpu.lowering.drafts import Draft
from anynpu.lowering.table import Node

_MOVES = frozenset(
    (
        *("Reshape", "Transpose", "Squeeze", "Unsqueeze", "Slice", "Flatten", "Expand", "Tile", "Gather", "Identity"),
        *("Split", "GatherElements", "GatherND", "ReduceMax", "ReduceMin", "ReduceSum", "Cast", "CumSum", "Round"),
        *("Floor", "Ceil"),
    )
)
"""What gives a number below zero only where it reads one."""
_SUMS = frozenset(("Add", "Mul", "Div", "Max", "Min", "Concat", "Mod", "MatMul", "Sum", "Mean", "Pad"))
"""The same of all their operands."""
_COUNTS = frozenset(
    (
        *("ArgMax", "ArgMin", "Shape", "Size", "NonZero", "OneHot", "Abs", "Relu", "Sigmoid", "HardSigmoid", "Softmax"),
        *("Exp", "Sqrt", "Not", "And", "Or", "Equal", "Less", "LessOrEqual", "Greater", "GreaterOrEqual", "EyeLike"),
    )
)
"""What is never below zero."""


def _may_be_below_zero(name: str, draft: Draft, inputs: bool) -> bool:
    """Tells whether a tensor may hold a number below zero; of whole numbers that are fed, `inputs` says so."""
    waiting, seen = [name], set[str]()
    while waiting:
        name = waiting.pop()
        if name in seen:
            continue
        seen.add(name)
        if (array := draft.constants.get(name)) is not None:
            if (array < 0).any():
                return True
            continue
        maker = draft.makers.get(name)
        if maker is None:
            if inputs or name in draft.reals:
                return True
            continue
        operands = [each for each in maker.input if each]
        if maker.op_type == "Clip":
            least = draft.constants.get(maker.input[1]) if len(maker.input) > 1 else None
            if least is None or least < 0:
                waiting.append(operands[0])
        elif (
            maker.op_type == "Max"
            and any((array := draft.constants.get(each)) is not None and (array >= 0).all() for each in operands)
        ) or (maker.op_type == "TopK" and name == maker.output[-1]):
            continue
        elif maker.op_type in _MOVES:
            waiting.append(operands[0])
        elif maker.op_type == "Where":
            waiting += operands[1:]
        elif maker.op_type in _SUMS:
            waiting += operands
        elif maker.op_type not in _COUNTS:
            return True
    return False


def from_the_front(draft: Draft, node: Node) -> bool:
    """Places that may be below zero get the size of their axis where they are."""
    places, shape = node.input(1), draft.shapes[node.input(0)]
    # Words are places too: what is fed is taken for them, but where nothing would notice a wrong place.
    if places in draft.constants or not _may_be_below_zero(places, draft, inputs=node.op != "Gather"):
        return False
    if node.op == "GatherND":
        if int(node.get("batch_dims", 0)):
            return False
        size = np.asarray(shape[: draft.shapes[places][-1]], np.int64)
    else:
        size = np.asarray(shape[int(node.get("axis", 0)) % len(shape)], np.int64)
    whole = draft.add("Cast", [places], to=onnx.TensorProto.INT64)
    below = draft.add("Less", [whole, draft.store(np.zeros((), np.int64), "zero")])
    more = draft.add("Mul", [draft.add("Cast", [below], to=onnx.TensorProto.INT64), draft.store(size, "size")])
    front = draft.add("Add", [whole, more])
    draft.add(node.op, [node.input(0), front], last=True, **node.attributes)
    return True


COUNTED = {"Gather": from_the_front, "GatherElements": from_the_front, "GatherND": from_the_front}
